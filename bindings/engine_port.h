// The engine as plugins see it: shared libraries that a framework loads, beside this module and
// from the same build, and that link neither it nor Python. They get one pointer to a port, which
// finds the engine of the world that the process is in, and outlives every engine.
//
// All methods may be called from any thread, without the GIL, and throw nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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

  // Starts operations. `then` gets the result, a refusal too: maybe before this returns, maybe from
  // another thread. The tensors' memory stays valid until then; what the spans refer to is copied.
  virtual void start(int set, std::span<const Submission> submissions, Continuation then) = 0;
  // Starts operations and waits for them, making progress. Nothing when a signal handler of Python
  // raised meanwhile: the operations go on, `late` gets their result, and Python is to call
  // Port.rethrow().
  virtual std::optional<Result> run(int set, std::span<const Submission> submissions,
                                    Continuation late) = 0;
  // For submissions of tensors on a GPU: the dependency on the work in `stream` that makes the
  // tensors. `address`: in the GPU's memory. Or an error.
  virtual std::variant<Departure, Error> depart(cuda::Stream stream, std::uint64_t address) = 0;
  // Keeps the last error of which a framework gets the text only, for Port.take_failure().
  virtual void keep_failure(const Error& error) = 0;
  // The rank is -1 in a process set of which this process is no member. Nothing outside of a world,
  // and where there is no such process set.
  virtual std::optional<int> number(WorldNumber what, int set) = 0;
};

}  // namespace hvd
