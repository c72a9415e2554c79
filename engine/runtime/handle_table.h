// Handles, on which callers wait. A handle is for one or more operations, and is done when the last
// one is done.
//
// A handle stays open until its result is taken: the thread that waited reads its error and
// outputs. A handle with a continuation closes itself.
//
// A continuation is for a caller without a thread that can wait, such as a graph of TensorFlow. The
// thread that completes the handle calls it later, when it has given up the progress role and holds
// no lock. So a continuation may submit the next operation, or wait for it.
//
// A handle is *unattended* while the background thread has to bring it forward: it has a
// continuation, so that no caller makes progress, or its tensors are on GPUs, where its work should
// be before the caller waits. The background thread starts such handles soon, also without a spare
// core.
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
#include "runtime/engine_lock.h"
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

  // `always_unattended`: threads that wait never make progress, only the background thread does.
  HandleTable(EngineLock& lock, int generation, bool always_unattended)
      : lock_(lock),
        always_unattended_(always_unattended),
        serial_(static_cast<HandleId>(generation) << 28),
        is_unattended_(always_unattended) {}

  // Under the engine's mutex. `is_unattended`: also without a continuation.
  HandleId open(std::size_t operations, Continuation then = {}, bool is_unattended = false);
  // For an open handle.
  void add_dependency(HandleId id, const StreamDependencyPtr& dependency);
  // One of the handle's operations is done. `outputs` begin at `position` in the result.
  void complete(HandleId id, std::size_t position, const std::optional<Error>& error,
                std::vector<Output> outputs);
  // The world is over. Operations under way are never continued.
  void end(const Error& error);
  const std::optional<Error>& error() const { return error_; }

  // Takes the mutex.
  bool contains(HandleId id);
  Pending pending(HandleId id);  // reading it needs no mutex
  // The result of a handle that is done. Closes the handle.
  Result take(HandleId id);
  // Gives an open handle a continuation.
  void continue_with(HandleId id, Continuation then);
  // Calls the continuations that are due, outside of the progress role. False for none.
  bool deliver();
  void throw_if_over();

  bool has_due() const { return has_due_.load(); }
  // Whether operations are under way that the background thread has to bring forward.
  bool is_unattended() const { return is_unattended_.load(); }
  bool is_always_unattended() const { return always_unattended_; }
  bool is_over() const { return is_over_.load(); }

 private:
  struct Handle {
    std::atomic<HandleId> pending_id{0};  // the id while not done
    HandleId id = 0;                      // 0 while free
    std::size_t remaining = 0;
    bool is_unattended = false;  // without regard to a continuation
    Continuation then;
    Result result;
  };

  void set_continuation(Handle& handle, Continuation then);
  void make_due(Handle& handle);
  Result close(Handle& handle);
  void count_unattended(int change);
  Handle& at(HandleId id) { return handles_[static_cast<std::size_t>(id & kIndexMask)]; }

  static constexpr int kIndexBits = 24;
  static constexpr HandleId kIndexMask = (HandleId{1} << kIndexBits) - 1;

  EngineLock& lock_;
  const bool always_unattended_;
  std::deque<Handle> handles_;  // never shrinks, so references stay valid
  std::vector<HandleId> free_;
  std::vector<std::pair<Continuation, Result>> due_;
  // Pending handles with a continuation, and those that are unattended without it.
  int unattended_count_ = 0;
  HandleId serial_;
  std::optional<Error> error_;
  std::atomic<bool> has_due_{false};
  std::atomic<bool> is_unattended_;
  std::atomic<bool> is_over_{false};
};

}  // namespace hvd
