// The records of the flight recorder: events of fixed size, and labels, the names that events refer
// to.
//
// The layouts and numbers are those of recorder files (docs/timeline.md): add, never change.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <tuple>

namespace hvd {

enum class EventKind : std::uint8_t {
  kNone = 0,         // a place that was taken and not used
  kWorld = 1,        // a world begins; subject: its number among the worlds of this process
  kSubmit = 2,       // subject: label, value: bytes; detail: 1 where all ranks of the host are here
  kBucketStart = 3,  // subject: bucket, value: tensors and groups in it
  kFused = 4,        // subject: label, value: the bucket that it runs in
  kBucketDone = 5,   // subject: bucket, value: nanoseconds of waits in it
  kWait = 6,         // a wait begins; subject: rank waited for, detail: WaitPhase, value: target
  kWaited = 7,       // a long one ends; the same, but value: nanoseconds
  kError = 8,        // subject: label, value: error code
  kAlarm = 9,        // subject: rank that is lost
  kStall = 10,       // subject: label, value: nanoseconds since it was submitted
  kFailed = 11,      // the world is over for this rank; value: error code
  kLeft = 12,        // this rank shuts down
  kBlocked = 13,     // the program has waited for results until now; value: nanoseconds
};

// The reason of a wait in the middle of a bucket.
enum class WaitPhase : std::uint8_t {
  kStaged = 0,     // a rank of this host must stage its data
  kReduced = 1,    // it must reduce its share
  kFinished = 2,   // it must copy the data that it needs
  kLink = 3,       // another host
  kDataPlane = 4,  // an external engine
};

struct Event {
  std::int64_t time_ns = 0;  // of the host's monotonic clock
  EventKind kind = EventKind::kNone;
  std::uint8_t detail = 0;
  std::uint16_t process_set = 0;
  std::uint32_t subject = 0;
  std::uint64_t value = 0;
};

// An event in memory and in files. `index`: its running number + 1; 0 while it is being written.
struct EventCell {
  std::atomic<std::uint64_t> index;
  std::atomic<std::int64_t> time_ns;
  std::atomic<std::uint64_t> what;  // subject, process set, detail, kind: from the lowest bits up
  std::atomic<std::uint64_t> value;
};
static_assert(sizeof(EventCell) == 32);

// A tensor's name, dtype, shape and so on.
struct Label {
  static constexpr std::size_t kMaxDims = 6;
  static constexpr std::size_t kNameBytes = 111;

  std::uint64_t key = 0;  // the same on all ranks
  std::uint16_t process_set = 0;
  std::uint8_t kind = 0;
  std::uint8_t dtype = 0;
  std::uint16_t tensors = 1;     // of a group
  std::uint8_t dims_count = 0;   // may be more than are kept
  std::uint8_t name_length = 0;  // the end of a longer name is kept
  std::array<std::int64_t, kMaxDims> dims{};
  std::array<char, kNameBytes> name{};
  std::uint8_t op = 0;  // of reductions

  std::string_view text() const { return {name.data(), name_length}; }
  void set_name(std::string_view whole);
};

struct LabelCell {
  using Words = std::array<std::uint64_t, sizeof(Label) / 8>;

  std::atomic<std::uint64_t> index;  // as in EventCell
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Words>> words;
};
static_assert(sizeof(Label) == 176 && sizeof(LabelCell) == 184);

}  // namespace hvd
