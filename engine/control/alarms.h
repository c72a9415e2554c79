// Why the world ends, as all ranks of a host see it. One per world, in shared memory; zeroed memory
// is the valid start state. All methods are free of locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/futex.h"

namespace hvd {

struct Alarm {
  ErrorCode code = ErrorCode::kInternal;
  int rank = -1;
  std::string text;
};

class Alarms {
 public:
  static std::size_t region_bytes();

  // `base` is the start of the alarms' part of a region that outlives this object.
  explicit Alarms(std::byte* base);

  // Moves whenever a rank leaves or dies or raises an alarm.
  std::uint32_t count() const;
  void touch();                    // a rank's liveness changed
  void raise(const Alarm& alarm);  // the first one is kept
  std::optional<Alarm> first() const;

  // Remembers the first rank that left of its own accord: later ones may only follow it.
  void note_departure(int rank);
  std::optional<int> first_departure() const;

 private:
  struct Words;
  Words* const words_;
};

}  // namespace hvd
