// The right to run collectives: one thread of a process has it at a time.
//
// A thread that waits for a handle takes it and runs buckets itself, without a hand-over to another
// thread. The background thread takes it when no thread waits, and gives it up between two steps
// when one does. A half-run bucket stays for the next holder.
#pragma once

#include <atomic>
#include <mutex>

#include "runtime/doorbells.h"
#include "runtime/engine_lock.h"

namespace hvd {

class ProgressRole {
 public:
  ProgressRole(EngineLock& lock, Presence& presence, Doorbells& doorbells)
      : lock_(lock), presence_(presence), doorbells_(doorbells) {}

  // False when another thread has it, or it is closed. A helper waits a moment for it, and asks the
  // background thread to give it up.
  bool take(bool as_helper);
  // Returns what `look` finds under the mutex when the role is free.
  bool release(auto&& look) {
    presence_.set_wait_state(WaitState::kBackground);
    const std::lock_guard guard(lock_.mutex);
    is_taken_ = false;
    lock_.changed.notify_all();
    return look();
  }

  bool is_taken() const { return is_taken_; }  // under the mutex
  // Does a helper want it?
  bool is_wanted() const { return helpers_.load() != 0; }
  // No thread gets it any more, and the holder gives it up soon.
  void close();
  bool is_closed() const { return is_closed_.load(); }
  // After close(): waits until it is free and keeps it. `lock` holds the mutex.
  void take_for_good(std::unique_lock<std::mutex>& lock);

 private:
  EngineLock& lock_;
  Presence& presence_;
  Doorbells& doorbells_;
  bool is_taken_ = false;
  std::atomic<int> helpers_{0};  // that wait for it
  std::atomic<bool> is_closed_{false};
};

}  // namespace hvd
