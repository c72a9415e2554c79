#include "bindings/port_py.h"

#include <algorithm>
#include <utility>

#include "bindings/error_py.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

namespace {

EnginePort::Result refused(const Error& error) { return {.error = error, .outputs = {}}; }

}  // namespace

void Port::attach(nb::object engine, Place place) {
  Engine* raw = nb::cast<Engine*>(engine);
  // The last user may be a thread of a framework.
  std::shared_ptr<Engine> shared(raw, [object = engine.release()](Engine*) {
    const nb::gil_scoped_acquire acquire;
    object.dec_ref();
  });
  const std::lock_guard guard(mutex_);
  engine_.swap(shared);  // the old one, if any, goes after the lock
  place_ = place;
  newcomer_.reset();
  had_engine_ = true;
  failure_.reset();
}

void Port::await(std::optional<Newcomer> newcomer) {
  const std::lock_guard guard(mutex_);
  newcomer_ = newcomer;
}

void Port::detach(const Engine& engine) {
  std::shared_ptr<Engine> detached;
  const std::lock_guard guard(mutex_);
  if (engine_.get() == &engine) detached.swap(engine_);
}

std::shared_ptr<Engine> Port::engine() {
  const std::lock_guard guard(mutex_);
  return engine_;
}

Error Port::no_world() {
  const std::lock_guard guard(mutex_);
  if (had_engine_) {
    return Error(ErrorCode::kAborted, "Horovod has been shut down; use hvd.init() to begin anew");
  }
  return Error(ErrorCode::kInvalidArgument,
               std::string("Horovod has not been initialized; use hvd.init() first") + kNewcomer);
}

void Port::start(int set, std::span<const Submission> submissions, Continuation then) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) {
    then(refused(no_world()));
    return;
  }
  try {
    engine->submit(set, submissions, Intent::kCompute, then);
  } catch (const Error& error) {
    then(refused(error));
  } catch (const std::exception& error) {
    then(refused(Error(ErrorCode::kSystem, error.what())));
  }
}

// Whether a signal handler of Python raised an exception. It cannot pass through a framework, so it
// is kept for rethrow().
bool Port::is_interrupted() {
  const nb::gil_scoped_acquire acquire;
  raised_.reset();  // of a call that did not ask for it
  if (PyErr_CheckSignals() == 0) return false;
  raised_ = std::make_unique<nb::python_error>();
  return true;
}

void Port::rethrow() {
  const std::unique_ptr<nb::python_error> raised = std::move(raised_);
  if (raised == nullptr) return;
  raised->restore();
  throw nb::python_error();
}

std::optional<EnginePort::Result> Port::run(int set, std::span<const Submission> submissions,
                                            Continuation late) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return refused(no_world());
  HandleId handle = 0;
  try {
    handle = engine->submit(set, submissions, Intent::kWait);
  } catch (const Error& error) {
    return refused(error);
  } catch (const std::exception& error) {
    return refused(Error(ErrorCode::kSystem, error.what()));
  }
  bool is_done = false;
  {
    const WaitingThreads::Scope waiting(engine->waiting_threads());
    while (!(is_done = engine->wait(handle, kSignalInterval)) && !is_interrupted()) {
    }
  }
  if (is_done) return engine->take(handle);
  engine->continue_with(handle, std::move(late));
  return std::nullopt;
}

std::variant<Departure, Error> Port::depart(cuda::Stream stream, std::uint64_t address) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return no_world();
  if (engine->gpus() == nullptr) {
    return Error(ErrorCode::kInvalidArgument, "CUDA's driver (libcuda.so.1) was not found");
  }
  try {
    std::shared_ptr<Gpu> gpu = engine->gpus()->open();
    const int device = gpu->driver().device_of(address);
    auto dependency = std::make_shared<StreamDependency>(gpu, [stream](int) { return stream; });
    dependency->depart_from(device);
    return Departure{.gpu = std::move(gpu), .device = device, .dependency = std::move(dependency)};
  } catch (const Error& error) {
    return error;
  }
}

void Port::keep_failure(const Error& error) {
  const std::lock_guard guard(mutex_);
  failure_ = error;
}

std::optional<Error> Port::take_failure() {
  const std::lock_guard guard(mutex_);
  return std::exchange(failure_, std::nullopt);
}

std::optional<int> Port::number_of_newcomer(WorldNumber what, int set) {
  const std::lock_guard guard(mutex_);
  if (!newcomer_ || set != 0) return std::nullopt;
  switch (what) {
    case WorldNumber::kSize:
      return newcomer_->size;
    case WorldNumber::kRank:
      return newcomer_->rank;
    case WorldNumber::kLocalSize:
      return newcomer_->place.local_size;
    case WorldNumber::kLocalRank:
      return newcomer_->place.local_rank;
    case WorldNumber::kIncluded:
      return 0;
  }
  return std::nullopt;
}

std::optional<int> Port::number(WorldNumber what, int set) {
  const std::shared_ptr<Engine> engine = this->engine();
  if (engine == nullptr) return number_of_newcomer(what, set);
  if (what == WorldNumber::kLocalRank) return place_.local_rank;
  if (what == WorldNumber::kLocalSize) return place_.local_size;
  const std::vector<int> members = engine->members_of(set);
  if (members.empty()) return std::nullopt;
  if (what == WorldNumber::kSize) return static_cast<int>(members.size());
  const auto found = std::ranges::lower_bound(members, engine->world().config.rank);
  const bool is_member = found != members.end() && *found == engine->world().config.rank;
  if (what == WorldNumber::kIncluded) return is_member ? 1 : 0;
  return is_member ? static_cast<int>(found - members.begin()) : -1;
}

void bind_port(nb::module_& module) {
  nb::class_<Port>(module, "Port")
      .def(nb::init<>())
      .def(
          "attach",
          [](Port& port, nb::object engine, int local_rank, int local_size) {
            port.attach(std::move(engine), {.local_rank = local_rank, .local_size = local_size});
          },
          "engine"_a, "local_rank"_a, "local_size"_a)
      .def(
          "await_world",
          [](Port& port, int rank, int size, int local_rank, int local_size) {
            const Port::Place place{.local_rank = local_rank, .local_size = local_size};
            port.await(Port::Newcomer{.rank = rank, .size = size, .place = place});
          },
          "rank"_a, "size"_a, "local_rank"_a, "local_size"_a)
      .def("await_none", [](Port& port) { port.await(std::nullopt); })
      .def("rethrow", &Port::rethrow)
      .def(
          "take_failure",
          [](Port& port) {
            const std::optional<Error> failure = port.take_failure();
            return failure ? to_python(*failure) : nb::object(nb::none());
          },
          nb::sig("def take_failure(self) -> Exception | None"))
      .def("detach", &Port::detach, "engine"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("address", [](Port& port) {
        return reinterpret_cast<std::uintptr_t>(static_cast<EnginePort*>(&port));
      });
}

}  // namespace hvd
