// Handles: what a caller waits on. A handle covers one or more operations and is done with the
// last.
//
// All methods need the engine's mutex; a Pending taken under it can be asked without. A handle
// stays until it is closed, so that the thread that waited can fetch its error and outputs. A
// handle with a continuation closes itself.
//
// A continuation is for a caller without a thread that could wait, such as a graph of TensorFlow.
// The thread that completes the handle calls it later, when it has given up the progress role and
// holds no lock: a continuation may submit the next operation, or wait for it. While such handles
// are pending no caller helps, so the background thread starts soon, also without a spare core.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "gpu/stream_dependency.h"
#include "runtime/output.h"

namespace hvd {

using HandleId = std::int64_t;

// Whether a handle is still pending; valid as long as its table.
class Pending {
 public:
  Pending(const std::atomic<HandleId>& word, HandleId id) : word_(&word), id_(id) {}
  explicit operator bool() const { return word_->load(std::memory_order_acquire) == id_; }

 private:
  const std::atomic<HandleId>* word_;
  HandleId id_;
};

class HandleTable {
 public:
  struct Result {
    std::optional<Error> error;
    std::vector<Output> outputs;  // what the engine allocated
    // Of tensors on GPUs: what the caller's streams have to wait for.
    std::vector<StreamDependencyPtr> dependencies = {};
  };
  // Gets the result of a handle that no thread waits for.
  using Continuation = std::function<void(Result)>;

  explicit HandleTable(int generation) : serial_(static_cast<HandleId>(generation) << 28) {}

  HandleId open(std::size_t operations, Continuation then = {});
  // For an open handle.
  void add_dependency(HandleId id, const StreamDependencyPtr& dependency);
  // One of the handle's operations is done. True when it was the last. `outputs` begin at
  // `position` in the result.
  bool complete(HandleId id, std::size_t position, const std::optional<Error>& error,
                std::vector<Output> outputs);
  bool contains(HandleId id) const;
  Pending pending(HandleId id) const { return Pending(at(id).pending_id, id); }
  // Removes a done handle.
  Result close(HandleId id);

  // Gives an open handle a continuation.
  void continue_with(HandleId id, Continuation then);
  // Pending handles that have one.
  std::size_t continued_count() const { return continued_count_; }
  // A continuation whose handle is done, with its result.
  using Due = std::pair<Continuation, Result>;
  bool has_due() const { return !due_.empty(); }
  std::vector<Due> take_due() { return std::exchange(due_, {}); }

 private:
  struct Handle {
    std::atomic<HandleId> pending_id{0};  // the id while not done
    HandleId id = 0;                      // 0 while free
    std::size_t remaining = 0;
    Continuation then;
    Result result;
  };

  void make_due(Handle& handle);
  Handle& at(HandleId id) { return handles_[static_cast<std::size_t>(id & kIndexMask)]; }
  const Handle& at(HandleId id) const {
    return handles_[static_cast<std::size_t>(id & kIndexMask)];
  }

  static constexpr int kIndexBits = 24;
  static constexpr HandleId kIndexMask = (HandleId{1} << kIndexBits) - 1;

  std::deque<Handle> handles_;  // never shrinks, so references stay valid
  std::vector<HandleId> free_;
  std::vector<Due> due_;
  std::size_t continued_count_ = 0;
  HandleId serial_;
};

}  // namespace hvd
