// The one EnginePort of this process, owned by Python.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "bindings/engine_port.h"
#include "runtime/engine.h"

namespace hvd {

constexpr auto kSignalInterval = std::chrono::milliseconds(100);  // between looks for Ctrl-C

class Port : public EnginePort {
 public:
  // From now on plugins use this engine. `place`: of the process on its host.
  struct Place {
    int local_rank = 0;
    int local_size = 1;
  };
  void attach(nanobind::object engine, Place place);
  // Until then this process is about to join a world of others, probably with these numbers. It is
  // no member yet: what it does before, it does alone. None: it is not any more.
  struct Newcomer {
    int rank = 0;
    int size = 1;
    Place place;
  };
  void await(std::optional<Newcomer> newcomer);
  void detach(const Engine& engine);  // unless another one is attached by now
  // Raises the exception that a signal handler raised in run(), once.
  void rethrow();

  void start(int set, std::span<const Submission> submissions, Continuation then) override;
  std::optional<Result> run(int set, std::span<const Submission> submissions,
                            Continuation late) override;
  std::variant<Departure, Error> depart(cuda::Stream stream, std::uint64_t address) override;
  void keep_failure(const Error& error) override;
  std::optional<int> number(WorldNumber what, int set) override;
  // The last error that was kept since attach(), once.
  std::optional<Error> take_failure();

 private:
  std::shared_ptr<Engine> engine();
  std::optional<int> number_of_newcomer(WorldNumber what, int set);
  bool is_interrupted();
  Error no_world();

  std::mutex mutex_;
  std::shared_ptr<Engine> engine_;  // keeps the Python object alive
  Place place_;
  std::optional<Newcomer> newcomer_;
  bool had_engine_ = false;
  std::optional<Error> failure_;
  std::unique_ptr<nanobind::python_error> raised_;  // under the GIL
};

}  // namespace hvd
