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
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings/external_backend_py.h"
#include "bindings/port_py.h"
#include "bindings/seals_py.h"
#include "bindings/submission_py.h"
#include "kernels/reduce.h"
#include "runtime/engine.h"
#include "runtime/failed_start.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

namespace {

constexpr auto kExitPatience = std::chrono::seconds(1);

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// False when the operation is not done at `deadline_ns`; then another thread makes progress.
bool wait_done(Engine& engine, HandleId handle, std::int64_t deadline_ns = kNever) {
  // Counted until this thread holds the GIL again.
  const WaitingThreads::Scope waiting(engine.waiting_threads());
  Nanoseconds limit = kSignalInterval;
  for (;;) {
    if (deadline_ns != kNever)
      limit = std::clamp(Nanoseconds(deadline_ns - now_ns()), Nanoseconds::zero(), limit);
    bool is_done = false;
    {
      const nb::gil_scoped_release release;
      is_done = engine.wait(handle, limit);
    }
    if (is_done) return true;
    const bool is_interrupted = PyErr_CheckSignals() != 0;
    if (is_interrupted || limit == Nanoseconds::zero()) engine.leave_to_background();
    if (is_interrupted) throw nb::python_error();
    if (limit == Nanoseconds::zero()) return false;
  }
}

std::vector<Output> take_result(Engine& engine, HandleId handle) {
  if (!engine.contains(handle)) return {};  // another thread took it
  HandleTable::Result result = engine.take(handle);
  arrive(result);
  if (result.error) throw *result.error;
  return std::move(result.outputs);
}

std::vector<Output> result_of(Engine& engine, HandleId handle) {
  wait_done(engine, handle);
  return take_result(engine, handle);
}

std::optional<std::vector<Output>> result_within(Engine& engine, HandleId handle, double limit_s) {
  const double limit_ns = std::min(limit_s * 1e9, 1e18);
  if (!wait_done(engine, handle, now_ns() + static_cast<std::int64_t>(limit_ns)))
    return std::nullopt;
  return take_result(engine, handle);
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

void report_start_failure(const EngineConfig& config, int space_fd, const std::string& reason) {
  report_failed_start(config, *SharedSpace::of_file(space_fd), reason);
}

void add_process_set(Engine& engine, int set, std::vector<int> ranks, nb::object data_plane,
                     const LeaderLinks& control, const DataLinks& data) {
  engine.add_process_set(set, std::move(ranks), set_links(control, data, std::move(data_plane)));
}

int add_pair(Engine& engine, int peer, const LeaderLinks& control, const DataLinks& data) {
  return engine.add_pair(peer, set_links(control, data, nb::none()));
}

// Of a tensor that cannot be read.
using Explain = nb::typed<nb::callable, std::optional<std::string>(nb::handle)>;

void bind_values(nb::module_& module) {
  nb::class_<Operation>(module, "Operation")
      .def(
          "__init__",
          [](Operation* self, int kind, int op, int root, double prescale, double postscale,
             int process_set, bool is_flat, std::string title, std::string group, int format) {
            new (self) Operation{.kind = static_cast<Kind>(kind),
                                 .op = static_cast<ReduceOp>(op),
                                 .root = root,
                                 .prescale = prescale,
                                 .postscale = postscale,
                                 .format = static_cast<LinkFormat>(format),
                                 .process_set = process_set,
                                 .is_flat = is_flat,
                                 .title = std::move(title),
                                 .group = std::move(group)};
          },
          "kind"_a, "op"_a = static_cast<int>(ReduceOp::kSum), "root"_a = 0, "prescale"_a = 1.0,
          "postscale"_a = 1.0, "process_set"_a = 0, "is_flat"_a = false, "title"_a = "",
          "group"_a = "", "link_format"_a = static_cast<int>(LinkFormat::kAsSet))
      .def(
          "title_of",
          [](const Operation& self, nb::handle name, std::size_t index, std::size_t count) {
            return title_of(self, name, {index, count});
          },
          "name"_a.none(), "index"_a = 0, "count"_a = 0);
  nb::class_<TensorReader, Streams>(module, "TensorReader")
      .def(nb::init<nb::handle, Explain>(), "capsule"_a, "explain"_a);
}

using Described = std::tuple<std::uintptr_t, std::uintptr_t, std::vector<std::int64_t>, int>;

// nanobind's types, with names for the stub.
using Name = nb::typed<nb::handle, nb::str>;
using Names = nb::typed<nb::list, nb::str>;
using Shape = nb::typed<nb::list, std::int64_t>;
using DescribedTensor = nb::typed<nb::tuple, std::uintptr_t, std::uintptr_t, Shape, int>;
using DescribedTensors = nb::typed<nb::list, DescribedTensor>;
using Tensors = nb::typed<nb::list, nb::any>;
using Addresses = std::vector<std::uintptr_t>;
using Counts = nb::typed<nb::dict, nb::str, std::int64_t>;

// `names`: of the tensors; empty for a group. `devices`: empty for host memory. `output_bytes`:
// empty where results keep their shapes.
Call describe_all(const Operation& operation, nb::handle group, nb::list names, nb::list tensors,
                  const std::vector<int>& devices, const Streams* streams,
                  const std::vector<std::size_t>& output_bytes = {}) {
  Call call(operation, tensors.size(), streams);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const nb::object name = i < names.size() ? nb::object(names[i]) : nb::borrow(group);
    const GroupPlace place = names.size() == 0 ? GroupPlace{i, tensors.size()} : GroupPlace{};
    call.add(with_title(operation, name, place, [&] {
      const auto [in, out, shape, dtype] = nb::cast<Described>(tensors[i]);
      return describe(operation, in, out, shape, dtype,
                      devices.empty() ? kHostDevice : devices.at(i),
                      output_bytes.empty() ? 0 : output_bytes.at(i));
    }));
  }
  return call;
}

HandleId submit_address(Engine& engine, const Operation& operation, Name name, std::uintptr_t in,
                        std::uintptr_t out, const std::vector<std::int64_t>& shape, int dtype,
                        int intent, const std::vector<std::int64_t>& splits, int device,
                        const Streams* streams, std::size_t output_bytes) {
  const Operand operand = with_title(operation, name, {}, [&] {
    return describe(operation, in, out, shape, dtype, device, output_bytes);
  });
  return submit_one(engine, operation, operand, streams, name_in(name), splits,
                    static_cast<Intent>(intent));
}

HandleId submit_many(Engine& engine, const Operation& operation, Names names,
                     DescribedTensors tensors, int intent, const std::vector<int>& devices,
                     const Streams* streams, const Addresses& errors) {
  Call call = describe_all(operation, nb::none(), names, tensors, devices, streams);
  call.keep_errors(errors);
  return call.submit_each(engine, names_in(names), static_cast<Intent>(intent));
}

HandleId submit_group(Engine& engine, const Operation& operation, Name name,
                      DescribedTensors tensors, int intent, const std::vector<int>& devices,
                      const Streams* streams, const std::vector<std::size_t>& output_bytes,
                      const Addresses& errors, Names members) {
  Call call = describe_all(operation, name, {}, tensors, devices, streams, output_bytes);
  call.keep_errors(errors);
  return call.submit_group(engine, name_in(name), static_cast<Intent>(intent), names_in(members));
}

HandleId submit_tensor(Engine& engine, const TensorReader& reader, const Operation& operation,
                       Name name, nb::handle in, nb::handle out, int intent,
                       const std::vector<std::int64_t>& splits) {
  const Operand operand = read(reader, operation, name, in, out);
  return submit_one(engine, operation, operand, &reader, name_in(name), splits,
                    static_cast<Intent>(intent));
}

HandleId submit_tensors(Engine& engine, const TensorReader& reader, const Operation& operation,
                        Names names, Tensors tensors, int intent, const Addresses& errors) {
  Call call(operation, tensors.size(), &reader);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const nb::handle name = i < names.size() ? nb::handle(names[i]) : nb::handle(Py_None);
    call.add(read(reader, operation, name, tensors[i], tensors[i]));
  }
  call.keep_errors(errors);
  return call.submit_each(engine, names_in(names), static_cast<Intent>(intent));
}

// `outputs`: None where the engine allocates the results.
HandleId submit_tensor_group(Engine& engine, const TensorReader& reader, const Operation& operation,
                             Name name, Tensors inputs, nb::object outputs, int intent,
                             const Addresses& errors, Names members) {
  Call call(operation, inputs.size(), &reader);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const nb::object out = outputs.is_none() ? nb::none() : nb::object(outputs[i]);
    call.add(read(reader, operation, name, inputs[i], out, {i, inputs.size()}));
  }
  call.keep_errors(errors);
  return call.submit_group(engine, name_in(name), static_cast<Intent>(intent), names_in(members));
}

std::vector<Output> run_tensor(Engine& engine, const TensorReader& reader,
                               const Operation& operation, Name name, nb::handle in, nb::handle out,
                               const std::vector<std::int64_t>& splits) {
  const Operand operand = read(reader, operation, name, in, out);
  const HandleId handle =
      submit_one(engine, operation, operand, &reader, name_in(name), splits, Intent::kWait);
  try {
    return result_of(engine, handle);
  } catch (const nb::python_error&) {
    // Interrupted while the operation runs: its memory must stay, although the caller may drop the
    // tensors.
    in.inc_ref();
    out.inc_ref();
    throw;
  }
}

// Gives every rank the bytes of all ranks, joined. Python code agrees on values with it.
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
  counts["link_bytes"] = counters.link_bytes.get();
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

// In the layout of recorder files.
nb::bytes events_of(Engine& engine) {
  const std::vector<Event> events = engine.tracer().recorder().read(0).events;
  return nb::bytes(events.data(), events.size() * sizeof(Event));
}

// What was recorded from number `begin` on, the last `most` events of it: the number to go on with,
// and the events in the layout of recorder files. Stops at an event that is being written.
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

// In the layout of recorder files, without its number; empty where it is forgotten.
nb::bytes label_of(Engine& engine, std::uint32_t id) {
  const std::optional<Label> label = engine.tracer().recorder().label(id);
  return label ? nb::bytes(&*label, sizeof(Label)) : nb::bytes("", 0);
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_values(module);
  module.def("space_bytes", &Engine::space_bytes, "size"_a);
  module.def("report_failed_start", &report_start_failure, "config"_a, "space_fd"_a, "reason"_a);
  module.def("kernel_isa", &kernel_isa);
  nb::class_<Engine>(module, "Engine")
      .def("__init__", &make_engine, "config"_a, "space_fd"_a = -1, "pidfds"_a = std::vector<int>(),
           "pids"_a = std::vector<int>(), "data_plane"_a = nb::none(),
           "hosts"_a = std::vector<std::vector<int>>(), "doorbells"_a = std::vector<int>(),
           "control"_a = LeaderLinks(), "data"_a = DataLinks(), "news"_a = LeaderLinks(),
           "devices"_a.none() = nb::none())
      .def("submit", &submit_address, "operation"_a, "name"_a.none(), "input"_a, "output"_a,
           "shape"_a, "dtype"_a, "intent"_a, "splits"_a = std::vector<std::int64_t>(),
           "device"_a = kHostDevice, "streams"_a.none() = nb::none(), "output_bytes"_a = 0)
      .def("submit_many", &submit_many, "operation"_a, "names"_a, "tensors"_a, "intent"_a,
           "devices"_a = std::vector<int>(), "streams"_a.none() = nb::none(),
           "errors"_a = Addresses())
      .def("submit_group", &submit_group, "operation"_a, "name"_a.none(), "tensors"_a, "intent"_a,
           "devices"_a = std::vector<int>(), "streams"_a.none() = nb::none(),
           "output_bytes"_a = std::vector<std::size_t>(), "errors"_a = Addresses(),
           "members"_a = nb::list())
      .def("submit_tensor", &submit_tensor, "reader"_a, "operation"_a, "name"_a.none(),
           "input"_a.none(), "output"_a.none(), "intent"_a,
           "splits"_a = std::vector<std::int64_t>())
      .def("submit_tensors", &submit_tensors, "reader"_a, "operation"_a, "names"_a, "tensors"_a,
           "intent"_a, "errors"_a = Addresses())
      .def("submit_tensor_group", &submit_tensor_group, "reader"_a, "operation"_a, "name"_a.none(),
           "inputs"_a, "outputs"_a.none(), "intent"_a, "errors"_a = Addresses(),
           "members"_a = nb::list())
      .def("run_tensor", &run_tensor, "reader"_a, "operation"_a, "name"_a.none(), "input"_a.none(),
           "output"_a.none(), "splits"_a = std::vector<std::int64_t>())
      .def("gather", &gather_bytes, "name"_a, "payload"_a,
           "The payloads of all ranks, joined in rank order.")
      .def("add_process_set", &add_process_set, "process_set"_a, "ranks"_a,
           "data_plane"_a = nb::none(), "control"_a = LeaderLinks(), "data"_a = DataLinks())
      .def("add_pair", &add_pair, "peer"_a, "control"_a = LeaderLinks(), "data"_a = DataLinks(),
           "The process set of this rank and ``peer``, which needs no agreement.")
      .def("is_awaited", &Engine::is_awaited, "process_set"_a, "name"_a,
           "Whether another rank has submitted ``name``, as far as is known, and this one has not.")
      .def("raise_if_over", &Engine::throw_if_over,
           "Raises the error with which the world has ended here, if it has.")
      .def("remove_process_set", &Engine::remove_process_set, "process_set"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("discard_process_set", &Engine::discard_process_set, "process_set"_a)
      .def_prop_ro("leads_host", [](Engine& engine) { return engine.world().leads_host(); })
      .def("pending_on", &Engine::pending_on, "process_set"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("poll", &Engine::poll, "handle"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("contains", &Engine::contains, "handle"_a)
      .def("wait", &result_of, "handle"_a)
      .def("wait_for", &result_within, "handle"_a, "limit_s"_a,
           "Like ``wait``; None if the operation is not done within the limit.")
      .def("missing_ranks", &Engine::missing_ranks, "handle"_a,
           "Ranks that have not submitted the handle's operations, as far as is known here.")
      .def("title_of", &Engine::title_of, "handle"_a,
           "What an operation of the handle is, for messages; empty if it is done.")
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
      .def(
          "is_exact",
          [](Engine& engine, std::string_view name, std::uint64_t elements) {
            return engine.world().config.formats.is_exact(name, elements);
          },
          "name"_a, "elements"_a, "Whether such a tensor is sent exactly in every format.")
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
