// The engine for plugins. A plugin is a shared library that a framework loads. It is from the same
// build as this module, and links neither this module nor Python. It gets one pointer to a port.
// The port finds the engine of the current world of the process, and outlives every engine.
//
// All methods may be called from any thread, without the GIL, and do not throw.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "runtime/handle_table.h"
#include "runtime/submission.h"

namespace hvd {

// Numbers about a process' place in the world.
enum class WorldNumber : int {
  kSize = 0,  // of a process set
  kRank = 1,  // in a process set
  kLocalSize = 2,
  kLocalRank = 3,
  kIncluded = 4,  // 1 for a member of the process set, else 0
};
inline constexpr int kWorldNumberCount = 5;

// What to add where there is no world.
inline constexpr const char* kNewcomer =
    "; a process that joins a running elastic job is in no world before the function under "
    "hvd.elastic.run";

// Why EnginePort::number has no answer.
inline std::string no_answer_about(int set) {
  return "Horovod has not been initialized, or process set " + std::to_string(set) +
         " is not registered" + kNewcomer;
}

// Of tensors on a GPU.
struct Departure {
  std::shared_ptr<Gpu> gpu;
  int device;
  StreamDependencyPtr dependency;
};

class EnginePort {
 public:
  using Result = HandleTable::Result;
  using Continuation = HandleTable::Continuation;

  virtual ~EnginePort() = default;

  // Starts operations. `then` gets the result, or a refusal, maybe before this returns, maybe from
  // another thread. The tensors' memory stays valid until then. The data of the spans is copied.
  virtual void start(int set, std::span<const Submission> submissions, Continuation then) = 0;
  // Starts operations and waits for them, making progress. None if a signal handler of Python
  // raised meanwhile: then the operations go on, `late` gets their result, and Python must call
  // Port.rethrow().
  virtual std::optional<Result> run(int set, std::span<const Submission> submissions,
                                    Continuation late) = 0;
  // For submissions of tensors on a GPU: the dependency on the work in `stream`, which computes the
  // tensors, or an error. `address`: any address in the GPU's memory.
  virtual std::variant<Departure, Error> depart(cuda::Stream stream, std::uint64_t address) = 0;
  // Keeps an error for Port.take_failure(). For frameworks that pass on only the text of an error.
  virtual void keep_failure(const Error& error) = 0;
  // The rank is -1 if this process is not a member of the process set. None if there is no world or
  // no such process set.
  virtual std::optional<int> number(WorldNumber what, int set) = 0;
};

}  // namespace hvd
