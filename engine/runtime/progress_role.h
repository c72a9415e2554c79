// The right to run collectives: one thread of a process has it at a time.
//
// A thread that waits for a handle takes the role and runs buckets itself. So no other thread has
// to be woken. The background thread takes the role when no thread waits, and gives it up between
// two steps when a thread waits. The next holder continues an unfinished bucket.
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

  // False when another thread has the role, or it is closed. A helper asks the background thread to
  // give it up, and waits a moment for it.
  bool take(bool as_helper);
  // Gives up the role. Calls look() under the mutex afterwards, and returns its result.
  bool release(auto&& look) {
    presence_.set_wait_state(WaitState::kBackground);
    const std::lock_guard guard(lock_.mutex);
    is_taken_ = false;
    lock_.changed.notify_all();
    return look();
  }

  bool is_taken() const { return is_taken_; }  // under the mutex
  // Whether a helper wants the role.
  bool is_wanted() const { return helpers_.load() != 0; }
  // No thread gets the role any more, and the holder gives it up soon.
  void close();
  bool is_closed() const { return is_closed_.load(); }
  // After close(): waits until it is free and keeps it. `lock` holds the mutex.
  void take_for_good(std::unique_lock<std::mutex>& lock);

 private:
  EngineLock& lock_;
  Presence& presence_;
  Doorbells& doorbells_;
  bool is_taken_ = false;
  std::atomic<int> helpers_{0};  // that wait for the role
  std::atomic<bool> is_closed_{false};
};

}  // namespace hvd
