// The engine for Python. Calls that may block release the GIL; waits look for signals ten times a
// second, so Ctrl-C works in the middle of a collective.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings/external_backend_py.h"
#include "bindings/output_py.h"
#include "bindings/port_py.h"
#include "bindings/seals_py.h"
#include "bindings/submission_py.h"
#include "kernels/reduce.h"
#include "runtime/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

namespace {

constexpr auto kExitPatience = std::chrono::seconds(1);

void wait_done(Engine& engine, HandleId handle) {
  // Until this thread holds the GIL again.
  const WaitingThreads::Scope waiting(engine.waiting_threads());
  for (;;) {
    bool is_done = false;
    {
      const nb::gil_scoped_release release;
      is_done = engine.wait(handle, kSignalInterval);
    }
    if (is_done) return;
    if (PyErr_CheckSignals() != 0) {
      engine.leave_to_background();
      throw nb::python_error();
    }
  }
}

std::vector<Output> result_of(Engine& engine, HandleId handle) {
  wait_done(engine, handle);
  if (!engine.contains(handle)) return {};  // another thread took it
  HandleTable::Result result = engine.take(handle);
  arrive(result);
  if (result.error) throw *result.error;
  return std::move(result.outputs);
}

// Whether GPUs have finished what is done for the engine, within `limit_s`.
bool confirm(Engine& engine, double limit_s) {
  const std::int64_t deadline_ns = now_ns() + static_cast<std::int64_t>(limit_s * 1e9);
  for (;;) {
    const Nanoseconds left(std::max<std::int64_t>(deadline_ns - now_ns(), 0));
    {
      const nb::gil_scoped_release release;
      if (engine.confirm(std::min<Nanoseconds>(left, kSignalInterval))) return true;
    }
    if (left == Nanoseconds::zero()) return false;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

std::vector<WatchedProcess> watched(const std::vector<int>& pidfds, const std::vector<int>& pids) {
  std::vector<WatchedProcess> processes;
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    if (pids[rank] > 0) {
      processes.push_back(
          {.rank = static_cast<int>(rank), .pidfd = pidfds[rank], .pid = pids[rank]});
    }
  }
  return processes;
}

// Host, descriptor, seals.
using LeaderLinks = std::vector<std::tuple<int, int, const HeldSeals*>>;
// Host, channel, descriptor, seals; None for these: tensors travel as they are.
using DataLinks = std::vector<std::tuple<int, int, int, std::optional<HeldSeals>>>;

std::vector<LeaderLink> leader_links(const LeaderLinks& given) {
  std::vector<LeaderLink> links;
  for (const auto& [host, fd, seals] : given) {
    links.push_back({.host = host, .fd = fd, .seals = seals_of(seals)});
  }
  return links;
}

SetLinks set_links(const LeaderLinks& control, const DataLinks& data, nb::object data_plane) {
  std::vector<DataLink> links;
  for (const auto& [host, channel, fd, held] : data) {
    links.push_back(
        {.host = host, .channel = channel, .fd = fd, .seals = held ? held->seals : nullptr});
  }
  SetLinks result(leader_links(control), std::move(links));
  result.data_plane = data_plane_of(data_plane);
  return result;
}

void make_engine(Engine* self, const EngineConfig& config, int space_fd,
                 const std::vector<int>& pidfds, const std::vector<int>& pids,
                 nb::object data_plane, std::vector<std::vector<int>> hosts,
                 std::vector<int> doorbells, const LeaderLinks& control, const DataLinks& data,
                 const LeaderLinks& news, const DevicePlane* devices) {
  Connections connections{.hosts = std::move(hosts),
                          .doorbells = std::move(doorbells),
                          .world = set_links(control, data, std::move(data_plane)),
                          .news = leader_links(news),
                          .devices = devices == nullptr ? DevicePlane{} : *devices};
  auto space = space_fd < 0 ? SharedSpace::in_process() : SharedSpace::of_file(space_fd);
  new (self) Engine(config, std::move(space), watched(pidfds, pids), std::move(connections));
}

void add_process_set(Engine& engine, int set, std::vector<int> ranks, nb::object data_plane,
                     const LeaderLinks& control, const DataLinks& data) {
  engine.add_process_set(set, std::move(ranks), set_links(control, data, std::move(data_plane)));
}

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
             std::uint16_t small_between_hosts_kib) {
            const AllreduceCut cut{.block_kib = block_kib,
                                   .small_kib = small_kib,
                                   .small_between_hosts_kib = small_between_hosts_kib};
            new (self) Tuning{.fusion_threshold_bytes = fusion_threshold_bytes,
                              .bucket = {.cycle_time_us = cycle_time_us, .cut = cut}};
          },
          "fusion_threshold_bytes"_a, "cycle_time_us"_a, "block_kib"_a, "small_kib"_a,
          "small_between_hosts_kib"_a);
}

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

void bind_values(nb::module_& module) {
  nb::class_<Operation>(module, "Operation")
      .def(
          "__init__",
          [](Operation* self, int kind, int op, int root, double prescale, double postscale,
             int process_set) {
            new (self) Operation{.kind = static_cast<Kind>(kind),
                                 .op = static_cast<ReduceOp>(op),
                                 .root = root,
                                 .prescale = prescale,
                                 .postscale = postscale,
                                 .process_set = process_set};
          },
          "kind"_a, "op"_a = static_cast<int>(ReduceOp::kSum), "root"_a = 0, "prescale"_a = 1.0,
          "postscale"_a = 1.0, "process_set"_a = 0);
  nb::class_<TensorReader, Streams>(module, "TensorReader")
      .def(nb::init<nb::handle>(), "capsule"_a);
  bind_output(module);
}

using Described = std::tuple<std::uintptr_t, std::uintptr_t, std::vector<std::int64_t>, int>;

// As nanobind's types, and say in the stub what is in them.
using Name = nb::typed<nb::handle, nb::str>;
using Names = nb::typed<nb::list, nb::str>;
using Shape = nb::typed<nb::list, std::int64_t>;
using DescribedTensor = nb::typed<nb::tuple, std::uintptr_t, std::uintptr_t, Shape, int>;
using DescribedTensors = nb::typed<nb::list, DescribedTensor>;
using Tensors = nb::typed<nb::list, nb::any>;
using Counts = nb::typed<nb::dict, nb::str, std::int64_t>;

// `devices`: empty for host memory.
Call describe_all(const Operation& operation, nb::list tensors, const std::vector<int>& devices,
                  const Streams* streams) {
  Call call(operation, tensors.size(), streams);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [in, out, shape, dtype] = nb::cast<Described>(tensors[i]);
    call.add(
        describe(operation, in, out, shape, dtype, devices.empty() ? kHostDevice : devices.at(i)));
  }
  return call;
}

HandleId submit_address(Engine& engine, const Operation& operation, Name name, std::uintptr_t in,
                        std::uintptr_t out, const std::vector<std::int64_t>& shape, int dtype,
                        int intent, const std::vector<std::int64_t>& splits, int device,
                        const Streams* streams) {
  const Operand operand = describe(operation, in, out, shape, dtype, device);
  return submit_one(engine, operation, operand, streams, name_in(name), splits,
                    static_cast<Intent>(intent));
}

HandleId submit_many(Engine& engine, const Operation& operation, Names names,
                     DescribedTensors tensors, int intent, const std::vector<int>& devices,
                     const Streams* streams) {
  return describe_all(operation, tensors, devices, streams)
      .submit_each(engine, names_in(names), static_cast<Intent>(intent));
}

HandleId submit_group(Engine& engine, const Operation& operation, Name name,
                      DescribedTensors tensors, int intent, const std::vector<int>& devices,
                      const Streams* streams) {
  return describe_all(operation, tensors, devices, streams)
      .submit_group(engine, name_in(name), static_cast<Intent>(intent));
}

HandleId submit_tensor(Engine& engine, const TensorReader& reader, const Operation& operation,
                       Name name, nb::handle in, nb::handle out, int intent,
                       const std::vector<std::int64_t>& splits) {
  const Operand operand = read(reader, operation, in, out);
  return submit_one(engine, operation, operand, &reader, name_in(name), splits,
                    static_cast<Intent>(intent));
}

HandleId submit_tensors(Engine& engine, const TensorReader& reader, const Operation& operation,
                        Names names, Tensors tensors, int intent) {
  Call call(operation, tensors.size(), &reader);
  for (const nb::handle tensor : tensors) call.add(read(reader, operation, tensor, tensor));
  return call.submit_each(engine, names_in(names), static_cast<Intent>(intent));
}

// `outputs`: None where the engine allocates the results.
HandleId submit_tensor_group(Engine& engine, const TensorReader& reader, const Operation& operation,
                             Name name, Tensors inputs, nb::object outputs, int intent) {
  Call call(operation, inputs.size(), &reader);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const nb::object out = outputs.is_none() ? nb::none() : nb::object(outputs[i]);
    call.add(read(reader, operation, inputs[i], out));
  }
  return call.submit_group(engine, name_in(name), static_cast<Intent>(intent));
}

std::vector<Output> run_tensor(Engine& engine, const TensorReader& reader,
                               const Operation& operation, Name name, nb::handle in, nb::handle out,
                               const std::vector<std::int64_t>& splits) {
  const Operand operand = read(reader, operation, in, out);
  const HandleId handle =
      submit_one(engine, operation, operand, &reader, name_in(name), splits, Intent::kWait);
  try {
    return result_of(engine, handle);
  } catch (const nb::python_error&) {
    // Interrupted with the operation under way: its memory must outlive the caller's interest in
    // it.
    in.inc_ref();
    out.inc_ref();
    throw;
  }
}

// Gives every rank the bytes of all ranks, joined: for what Python code must agree on.
nb::bytes gather_bytes(Engine& engine, std::string_view name, nb::bytes payload) {
  auto mine =
      std::make_unique<std::vector<char>>(payload.c_str(), payload.c_str() + payload.size());
  const Operation operation{.kind = Kind::kAllgather};
  const Operand operand =
      describe(operation, reinterpret_cast<std::uintptr_t>(mine->data()), 0,
               {static_cast<std::int64_t>(mine->size())}, static_cast<int>(Dtype::kUint8));
  const HandleId handle = submit_one(engine, operation, operand, nullptr, name, {}, Intent::kWait);
  try {
    const std::vector<Output> outputs = result_of(engine, handle);
    const Output& joined = outputs.at(0);
    return nb::bytes(joined.bytes.get(), static_cast<std::size_t>(joined.shape[0]));
  } catch (const nb::python_error&) {
    static_cast<void>(mine.release());  // interrupted: the operation goes on
    throw;
  }
}

// Times in nanoseconds.
Counts counts_of(Engine& engine) {
  const Counters& counters = engine.counters();
  Counts counts;
  for (int kind = 0; kind < kKindCount; ++kind) {
    const KindCounts& of_kind = counters.kinds[static_cast<std::size_t>(kind)];
    const std::string name = name_of(static_cast<Kind>(kind));
    counts[(name + "_operations").c_str()] = of_kind.operations.get();
    counts[(name + "_tensors").c_str()] = of_kind.tensors.get();
    counts[(name + "_bytes").c_str()] = of_kind.bytes.get();
  }
  counts["in_flight"] = engine.pending_count();
  counts["buckets"] = counters.buckets.get();
  counts["fused_tensors"] = counters.fused_tensors.get();
  counts["queued_ns"] = counters.queued_ns.get();
  counts["waited_ns"] = counters.waited_ns.get();
  counts["blocked_ns"] = counters.blocked_ns.get();
  counts["errors"] = counters.errors.get();
  counts["stalls"] = counters.stalls.get();
  counts["steps"] = counters.pacemaker.steps.get();
  counts["stepped_ns"] = counters.pacemaker.stepped_ns.get();
  counts["last_step_ns"] = counters.pacemaker.last_step_ns.get();
  return counts;
}

// As they lie in recorder files.
nb::bytes events_of(Engine& engine) {
  const std::vector<Event> events = engine.tracer().recorder().read(0).events;
  return nb::bytes(events.data(), events.size() * sizeof(Event));
}

// What was recorded from number `begin` on, the last `most` events of it: the number to go on with,
// and the events as they lie in recorder files. Stops at one that is being written.
std::tuple<std::uint64_t, nb::bytes> events_since(Engine& engine, std::uint64_t begin,
                                                  std::uint64_t most) {
  RecorderView::Found found;
  {
    const nb::gil_scoped_release release;
    const RecorderView& recorder = engine.tracer().recorder();
    const std::uint64_t end = recorder.end();
    found = recorder.read(std::max(begin, end - std::min(end, most)), true);
  }
  return {found.end, nb::bytes(found.events.data(), found.events.size() * sizeof(Event))};
}

// As it lies in recorder files, without its number; nothing where it is forgotten.
nb::bytes label_of(Engine& engine, std::uint32_t id) {
  const std::optional<Label> label = engine.tracer().recorder().label(id);
  return label ? nb::bytes(&*label, sizeof(Label)) : nb::bytes("", 0);
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_config(module);
  bind_values(module);
  module.def("space_bytes", &Engine::space_bytes, "size"_a);
  module.def("kernel_isa", &kernel_isa);
  nb::class_<Engine>(module, "Engine")
      .def("__init__", &make_engine, "config"_a, "space_fd"_a = -1, "pidfds"_a = std::vector<int>(),
           "pids"_a = std::vector<int>(), "data_plane"_a = nb::none(),
           "hosts"_a = std::vector<std::vector<int>>(), "doorbells"_a = std::vector<int>(),
           "control"_a = LeaderLinks(), "data"_a = DataLinks(), "news"_a = LeaderLinks(),
           "devices"_a.none() = nb::none())
      .def("submit", &submit_address, "operation"_a, "name"_a.none(), "input"_a, "output"_a,
           "shape"_a, "dtype"_a, "intent"_a, "splits"_a = std::vector<std::int64_t>(),
           "device"_a = kHostDevice, "streams"_a.none() = nb::none())
      .def("submit_many", &submit_many, "operation"_a, "names"_a, "tensors"_a, "intent"_a,
           "devices"_a = std::vector<int>(), "streams"_a.none() = nb::none())
      .def("submit_group", &submit_group, "operation"_a, "name"_a.none(), "tensors"_a, "intent"_a,
           "devices"_a = std::vector<int>(), "streams"_a.none() = nb::none())
      .def("submit_tensor", &submit_tensor, "reader"_a, "operation"_a, "name"_a.none(),
           "input"_a.none(), "output"_a.none(), "intent"_a,
           "splits"_a = std::vector<std::int64_t>())
      .def("submit_tensors", &submit_tensors, "reader"_a, "operation"_a, "names"_a, "tensors"_a,
           "intent"_a)
      .def("submit_tensor_group", &submit_tensor_group, "reader"_a, "operation"_a, "name"_a.none(),
           "inputs"_a, "outputs"_a.none(), "intent"_a)
      .def("run_tensor", &run_tensor, "reader"_a, "operation"_a, "name"_a.none(), "input"_a.none(),
           "output"_a.none(), "splits"_a = std::vector<std::int64_t>())
      .def("gather", &gather_bytes, "name"_a, "payload"_a,
           "The payloads of all ranks, joined in rank order.")
      .def("add_process_set", &add_process_set, "process_set"_a, "ranks"_a,
           "data_plane"_a = nb::none(), "control"_a = LeaderLinks(), "data"_a = DataLinks())
      .def("remove_process_set", &Engine::remove_process_set, "process_set"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("discard_process_set", &Engine::discard_process_set, "process_set"_a)
      .def_prop_ro("leads_host", [](Engine& engine) { return engine.world().leads_host(); })
      .def("pending_on", &Engine::pending_on, "process_set"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("poll", &Engine::poll, "handle"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("contains", &Engine::contains, "handle"_a)
      .def("wait", &result_of, "handle"_a)
      .def("confirm", &confirm, "limit_s"_a,
           "Whether GPUs have finished, within the limit, what is done for the engine.")
      .def(
          "shutdown",
          [](Engine& engine) {
            engine.shutdown();
            // A daemon thread that Python ends inside of C++ code would end the process.
            engine.waiting_threads().let_end(kExitPatience);
          },
          nb::call_guard<nb::gil_scoped_release>())
      .def("end_world", &Engine::end_world, "reason"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Fail all operations of all ranks with this reason.")
      .def("abandon",
           [](nb::handle self) {
             nb::cast<Engine&>(self).abandon();
             self.inc_ref();  // its locks may be held by threads that are gone: never destroy it
           })
      .def_prop_ro("has_spare_cores",
                   [](Engine& engine) { return engine.world().config.has_spare_cores(); })
      .def("counts", &counts_of)
      .def(
          "step_times",
          [](Engine& engine, std::uint64_t first) {
            return engine.counters().pacemaker.times_since(first);
          },
          "first"_a, "Nanoseconds of the steps from number ``first`` on, of the last 255.")
      .def("tune", &Engine::tune, "tuning"_a, nb::call_guard<nb::gil_scoped_release>(),
           "On rank 0: holds for all ranks from the world's next collective on.")
      .def("events", &events_of)
      .def("events_since", &events_since, "begin"_a, "most"_a)
      .def("label", &label_of, "id"_a)
      .def(
          "write_recording",
          [](Engine& engine, const std::string& reason, const std::string& detail,
             const std::string& path) { return engine.tracer().write_file(reason, detail, path); },
          "reason"_a, "detail"_a, "path"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "start_timeline",
          [](Engine& engine, const std::string& path, bool mark_cycles) {
            engine.tracer().start_timeline(path, mark_cycles);
          },
          "path"_a, "mark_cycles"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "stop_timeline", [](Engine& engine) { engine.tracer().stop_timeline(); },
          nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace hvd
