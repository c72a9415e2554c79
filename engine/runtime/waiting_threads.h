// Counts the threads of a binding that wait inside of the engine: they must have left it when their
// runtime ends.
#pragma once

#include <atomic>
#include <thread>

#include "core/clock.h"

namespace hvd {

class WaitingThreads {
 public:
  // A thread counts as long as it has one.
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

}  // namespace hvd
