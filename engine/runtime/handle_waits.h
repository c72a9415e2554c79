// How threads of the program wait for handles: a thread that waits makes progress itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/clock.h"
#include "runtime/background.h"
#include "runtime/common_parts.h"

namespace hvd {

// Counts the threads of a binding that wait in the engine. They must leave it before the binding's
// runtime ends.
class WaitingThreads {
 public:
  // A thread is counted while its Scope exists.
  class Scope {
   public:
    explicit Scope(WaitingThreads& threads) : threads_(threads) { threads_.count_.fetch_add(1); }
    ~Scope() { threads_.count_.fetch_sub(1); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    WaitingThreads& threads_;
  };

  // Returns when no thread waits, or after `limit`.
  void let_end(Nanoseconds limit) const {
    const std::int64_t deadline_ns = now_ns() + limit.count();
    while (count_.load() != 0 && now_ns() < deadline_ns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  std::atomic<int> count_{0};
};

class HandleWaits : private CommonParts {
 public:
  HandleWaits(const CommonParts& common, Progress& progress, PeerWaits& peers,
              const Background& background, FormingDelay& delay, const BucketRunner& buckets);

  // See Engine.
  bool poll(HandleId handle);
  bool wait(HandleId handle, Nanoseconds limit);
  bool confirm(Nanoseconds limit);
  // Ends a turn in the progress role, rings the background thread if more is to be done, and calls
  // continuations.
  void release_role();

 private:
  void drive_until(const Pending& pending, std::int64_t deadline_ns);
  void await_background(const Pending& pending, std::int64_t deadline_ns);
  void note_wait(std::int64_t begin_ns);

  Progress& progress_;
  PeerWaits& peers_;
  const Background& background_;
  FormingDelay& delay_;
  const BucketRunner& buckets_;
  // Since when a thread waits that looks for signals between its waits; 0: none.
  std::atomic<std::int64_t> blocked_since_ns_{0};
};

}  // namespace hvd
