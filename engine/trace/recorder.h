// The flight recorder: the last kCapacity events of this process, always on.
//
// Writing is a clock read and a few stores; a reader takes a copy and drops events that were being
// overwritten meanwhile. Timeline, stall report and statistics are views over such copies.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/clock.h"

namespace hvd {

enum class EventKind : std::uint32_t {
  kSubmit = 0,       // subject: entry, value: bytes
  kReady = 1,        // subject: entry; this rank was the last to arrive
  kBucketStart = 2,  // subject: bucket, value: tensors
  kFused = 3,        // subject: entry, value: bucket
  kBucketDone = 4,   // subject: bucket, value: tensors
  kDone = 5,         // subject: entry
  kWait = 6,         // subject: rank waited for, value: the counter's target
  kError = 7,        // subject: entry, value: error code
  kAlarm = 8,        // subject: rank
};

struct Event {
  std::int64_t time_ns;
  EventKind kind;
  std::uint32_t subject;
  std::uint64_t value;
};

class Recorder {
 public:
  static constexpr std::uint64_t kCapacity = 1U << 13;

  void record(EventKind kind, std::uint32_t subject, std::uint64_t value) {
    record(now_ns(), kind, subject, value);
  }
  // For many events at one time: reading the clock is the dear part.
  void record(std::int64_t time_ns, EventKind kind, std::uint32_t subject, std::uint64_t value) {
    const std::uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    Cell& cell = cells_[index % kCapacity];
    cell.turn.store(0, std::memory_order_relaxed);
    cell.time_ns.store(time_ns, std::memory_order_release);
    cell.what.store(static_cast<std::uint64_t>(kind) << 32 | subject, std::memory_order_release);
    cell.value.store(value, std::memory_order_release);
    cell.turn.store(index + 1, std::memory_order_release);
  }

  // The recorded events that are still there, oldest first.
  std::vector<Event> snapshot() const;

 private:
  struct Cell {
    std::atomic<std::uint64_t> turn;  // index + 1 of the event it holds; 0 while written
    std::atomic<std::int64_t> time_ns;
    std::atomic<std::uint64_t> what;
    std::atomic<std::uint64_t> value;
  };

  std::unique_ptr<Cell[]> cells_ = std::make_unique<Cell[]>(kCapacity);
  std::atomic<std::uint64_t> next_{0};
};

}  // namespace hvd
