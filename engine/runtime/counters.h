// Counters of an engine's work. Any thread may read them at any time.
//
// Counting is a load and a store: every counter except one is written by one thread at a time,
// under the engine's mutex or in the progress role. No clock is read only for a counter.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "control/request.h"

namespace hvd {

class Count {
 public:
  // One thread at a time.
  void add(std::uint64_t number) {
    value_.store(value_.load(std::memory_order_relaxed) + number, std::memory_order_relaxed);
  }
  void add_ns(std::int64_t duration_ns) {
    if (duration_ns > 0) add(static_cast<std::uint64_t>(duration_ns));
  }
  // Any thread.
  void add_shared(std::uint64_t number) { value_.fetch_add(number, std::memory_order_relaxed); }
  void set(std::uint64_t number) { value_.store(number, std::memory_order_relaxed); }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct KindCounts {
  Count operations;  // submitted; a group is one
  Count tensors;
  Count bytes;  // of what this rank submitted
};

// Counts steps of training. A step is one submission of a certain tensor: the first tensor that was
// submitted again.
class Pacemaker {
 public:
  // `name` is submitted at `now`; the last time was `last_ns`. Under the engine's mutex.
  void beat(std::uint64_t name, std::int64_t last_ns, std::int64_t now) {
    if (name != name_ && !is_silent(now)) return;
    name_ = name;
    period_ns_ = now - last_ns;
    beat_ns_ = now;
    times_ns_[steps.get() % kRemembered].set(static_cast<std::uint64_t>(period_ns_));
    steps.add(1);
    stepped_ns.add_ns(period_ns_);
    last_step_ns.set(static_cast<std::uint64_t>(period_ns_));
  }

  // Any thread: times of the steps from number `first` on that are still known.
  std::vector<std::uint64_t> times_since(std::uint64_t first) const {
    const std::uint64_t end = steps.get();
    std::vector<std::uint64_t> times;
    for (std::uint64_t step = first; step < end; ++step) {
      times.push_back(times_ns_[step % kRemembered].get());
    }
    // Drop times that were overwritten meanwhile, or are being overwritten.
    const std::uint64_t oldest = steps.get() < kRemembered ? 0 : steps.get() + 1 - kRemembered;
    if (oldest > first) times.erase(times.begin(), times.begin() + std::min(oldest, end) - first);
    return times;
  }

  Count steps;
  Count stepped_ns;
  Count last_step_ns;

 private:
  static constexpr std::uint64_t kRemembered = 256;
  // The program no longer submits that tensor, or there was none.
  bool is_silent(std::int64_t now) const {
    return period_ns_ == 0 || now - beat_ns_ > kPatience * period_ns_;
  }

  static constexpr std::int64_t kPatience = 10;  // periods

  std::array<Count, kRemembered> times_ns_;  // by number
  std::uint64_t name_ = 0;
  std::int64_t period_ns_ = 0;
  std::int64_t beat_ns_ = 0;
};

struct Counters {
  // Under the engine's mutex.
  std::array<KindCounts, kKindCount> kinds;
  Pacemaker pacemaker;
  Count errors;  // operations that failed
  Count stalls;  // operations and collectives that waited for longer than they should
  // In the progress role.
  Count queued_ns;  // from submission to start, of all operations together
  Count buckets;
  Count fused_tensors;  // that ran in a bucket with others
  Count link_bytes;     // that were sent to other hosts
  Count waited_ns;      // for other ranks, in the middle of buckets
  // Threads of the program.
  Count blocked_ns;  // in waits for results
};

}  // namespace hvd
