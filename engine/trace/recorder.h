// The flight recorder of one rank: its last events, always on.
//
// It is in memory that the ranks of a host share. So a rank can read the events of another rank
// that no longer answers, or has died. Writing is a few stores, and a clock read if the caller has
// no time yet. A reader makes a copy, and drops events that were overwritten meanwhile. Timeline,
// stall report and files are views of such copies. In the steady state a tensor has two events, its
// submission and its bucket. Places for many events are taken at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "core/futex.h"
#include "trace/events.h"
#include "transport/shared_space.h"

namespace hvd {

// Shorter waits, for results or for a peer, get no event of their own.
constexpr Nanoseconds kLongWait = std::chrono::microseconds(20);

// The first page of a recorder's memory.
struct RecorderHeader {
  static constexpr std::size_t kAnswerBytes = 3500;

  alignas(64) SharedWord capacity;  // events that are kept, a power of two; 0: not in use
  alignas(64) std::atomic<std::uint64_t> next;
  std::atomic<std::uint64_t> next_label;
  // To ask this rank's tracer thread for something: change one of the words below, then change
  // `calls`, and wake the thread.
  alignas(64) SharedWord calls;
  SharedWord dumps_wanted;
  SharedWord questions;  // "what are you doing?"
  SharedWord answers;    // the last question that `answer` is for
  char answer[kAnswerBytes];
};

// Reads a recorder, this rank's or another's.
class RecorderView {
 public:
  struct Found {
    std::vector<Event> events;
    std::uint64_t first = 0;  // running number of the first one
    std::uint64_t end = 0;    // running number for the next read
    std::uint64_t lost = 0;   // overwritten before they were read
  };

  explicit RecorderView(std::shared_ptr<Region> region);

  RecorderHeader& header() const { return *header_; }
  const std::shared_ptr<Region>& memory() const { return region_; }
  std::uint32_t capacity() const { return header_->capacity.load(std::memory_order_acquire); }
  std::uint64_t end() const { return header_->next.load(std::memory_order_acquire); }
  // All events from number `begin` on that are still there. With `patiently` it stops at an event
  // that is being written; else it skips that event. `memory` is used for the result.
  Found read(std::uint64_t begin, bool patiently = false, std::vector<Event> memory = {}) const;
  std::vector<Event> last(std::uint64_t count) const;
  std::optional<Label> label(std::uint32_t id) const;
  std::uint64_t label_count() const { return header_->next_label.load(std::memory_order_acquire); }

 protected:
  const std::shared_ptr<Region> region_;
  RecorderHeader* const header_;
  LabelCell* const labels_;
  EventCell* const cells_;
};

class Recorder : public RecorderView {
 public:
  static constexpr std::uint32_t kLabels = 8192;  // that are kept
  static constexpr std::uint32_t kMaxEvents = 1U << 18;
  static constexpr std::uint32_t kNoLabel = ~0U;

  // Size of the shared memory. Unused parts are never touched.
  static std::size_t region_bytes();

  // Keeps `events` events, rounded up to a power of two. 0: records nothing. `region` is zeroed.
  Recorder(std::shared_ptr<Region> region, std::uint32_t events);

  bool is_on() const { return mask_ != 0; }

  // Any thread.
  void record(const Event& event) {
    if (!is_on()) return;
    write(header_->next.fetch_add(1, std::memory_order_relaxed), event);
  }
  void record_now(Event event) {
    if (!is_on()) return;
    event.time_ns = now_ns();
    record(event);
  }

  // Takes the places of many events at once: that is the most expensive part of an event. Places
  // that are left over get an event of kind kNone.
  class Batch {
   public:
    Batch(Recorder& recorder, std::size_t count)
        : recorder_(recorder),
          next_(recorder.is_on()
                    ? recorder.header_->next.fetch_add(count, std::memory_order_relaxed)
                    : 0),
          end_(recorder.is_on() ? next_ + count : next_) {}
    ~Batch() {
      while (next_ != end_) recorder_.write(next_++, {});
    }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    void add(const Event& event) {
      if (next_ != end_) recorder_.write(next_++, event);
    }

   private:
    Recorder& recorder_;
    std::uint64_t next_;
    std::uint64_t end_;
  };

  // One thread at a time. Returns the number of the label for events, valid until is_forgotten().
  std::uint32_t add_label(const Label& label);
  bool is_forgotten(std::uint32_t id) const {
    return id == kNoLabel || next_label_ - id > kLabels * 3 / 4;
  }

 private:
  void write(std::uint64_t number, const Event& event) {
    EventCell& cell = cells_[number & mask_];
    cell.index.store(0, std::memory_order_relaxed);
    cell.time_ns.store(event.time_ns, std::memory_order_release);
    cell.what.store(static_cast<std::uint64_t>(event.kind) << 56 |
                        static_cast<std::uint64_t>(event.detail) << 48 |
                        static_cast<std::uint64_t>(event.process_set) << 32 | event.subject,
                    std::memory_order_release);
    cell.value.store(event.value, std::memory_order_release);
    cell.index.store(number + 1, std::memory_order_release);
  }

  const std::uint64_t mask_;  // 0: off
  std::uint32_t next_label_ = 0;
};

}  // namespace hvd
