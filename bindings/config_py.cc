// What an engine is told when it starts, and what may change later, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "runtime/world.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

void bind_config(nb::module_& module);

namespace {

void bind_trace_config(nb::module_& module) {
  nb::class_<TraceConfig>(module, "TraceConfig",
                          "What the flight recorder keeps and where its files go.")
      .def(nb::init<>())
      .def_rw("events", &TraceConfig::events)
      .def_rw("folder", &TraceConfig::folder)
      .def_rw("is_chosen_folder", &TraceConfig::is_chosen_folder)
      .def_rw("job", &TraceConfig::job)
      .def_rw("world", &TraceConfig::world)
      .def_rw("generation", &TraceConfig::generation)
      .def_rw("presence", &TraceConfig::presence)
      .def_rw("stack_signal", &TraceConfig::stack_signal)
      .def_rw("stack_fd", &TraceConfig::stack_fd)
      .def_rw("timeline_path", &TraceConfig::timeline_path)
      .def_rw("timeline_mark_cycles", &TraceConfig::timeline_mark_cycles)
      .def_rw("timeline_max_bytes", &TraceConfig::timeline_max_bytes)
      .def_rw("data_plane", &TraceConfig::data_plane);
}

void bind_tuning(nb::module_& module) {
  nb::class_<Tuning>(
      module, "Tuning",
      "What ``Engine.tune`` changes; with a ``cycle_time_us`` of 0 the engine decides.")
      .def(
          "__init__",
          [](Tuning* self, std::uint64_t fusion_threshold_bytes, std::uint32_t cycle_time_us,
             std::uint16_t block_kib, std::uint16_t small_kib,
             std::uint16_t small_between_hosts_kib, int link_format) {
            const AllreduceCut cut{.block_kib = block_kib,
                                   .small_kib = small_kib,
                                   .small_between_hosts_kib = small_between_hosts_kib};
            new (self) Tuning{.fusion_threshold_bytes = fusion_threshold_bytes,
                              .bucket = {.cycle_time_us = cycle_time_us,
                                         .cut = cut,
                                         .link_format = static_cast<LinkFormat>(link_format)}};
          },
          "fusion_threshold_bytes"_a, "cycle_time_us"_a, "block_kib"_a, "small_kib"_a,
          "small_between_hosts_kib"_a, "link_format"_a);
}

}  // namespace

void bind_config(nb::module_& module) {
  bind_trace_config(module);
  bind_tuning(module);
  nb::class_<EngineConfig>(module, "Config")
      .def(nb::init<>())
      .def_rw("rank", &EngineConfig::rank)
      .def_rw("size", &EngineConfig::size)
      .def_rw("generation", &EngineConfig::generation)
      .def_rw("usable_cores", &EngineConfig::usable_cores)
      .def_rw("tuning", &EngineConfig::tuning)
      .def_prop_rw(
          "link_format", [](const EngineConfig& c) { return static_cast<int>(c.formats.as_set); },
          [](EngineConfig& c, int format) { c.formats.as_set = static_cast<LinkFormat>(format); })
      .def_prop_rw(
          "link_format_least_elements",
          [](const EngineConfig& c) { return c.formats.least_elements; },
          [](EngineConfig& c, std::uint64_t least) { c.formats.least_elements = least; })
      .def_rw("link_connections", &EngineConfig::link_connections)
      .def_prop_rw(
          "link_format_exact_parts", [](const EngineConfig& c) { return c.formats.exact_parts; },
          [](EngineConfig& c, std::vector<std::string> parts) {
            c.formats.exact_parts = std::move(parts);
          })
      .def_prop_rw(
          "is_rounding_stochastic",
          [](const EngineConfig& c) { return c.formats.rounding.is_stochastic; },
          [](EngineConfig& c, bool is) { c.formats.rounding.is_stochastic = is; })
      .def_prop_rw(
          "rounding_seed", [](const EngineConfig& c) { return c.formats.rounding.seed; },
          [](EngineConfig& c, std::uint64_t seed) { c.formats.rounding.seed = seed; })
      .def_prop_rw(
          "is_feeding_back", [](const EngineConfig& c) { return c.formats.is_feeding_back; },
          [](EngineConfig& c, bool is) { c.formats.is_feeding_back = is; })
      .def_rw("fuse_groups", &EngineConfig::fuse_groups)
      .def_rw("cache_capacity", &EngineConfig::cache_capacity)
      .def_rw("stall_check", &EngineConfig::stall_check)
      .def_rw("stall_check_time_s", &EngineConfig::stall_check_time_s)
      .def_rw("stall_shutdown_time_s", &EngineConfig::stall_shutdown_time_s)
      .def_rw("is_debug", &EngineConfig::is_debug)
      .def_rw("debug_interval", &EngineConfig::debug_interval)
      .def_rw("peer_names", &EngineConfig::peer_names)
      .def_rw("peer_hosts", &EngineConfig::peer_hosts)
      .def_rw("trace", &EngineConfig::trace)
      .def_prop_rw(
          "log_level", [](const EngineConfig& c) { return static_cast<int>(c.log.level); },
          [](EngineConfig& c, int level) { c.log.level = static_cast<LogLevel>(level); })
      .def_prop_rw(
          "log_hide_time", [](const EngineConfig& c) { return c.log.hide_time; },
          [](EngineConfig& c, bool hide) { c.log.hide_time = hide; });
}

}  // namespace hvd
