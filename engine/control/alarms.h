// The reason why the world ends, for all ranks of a host. One per world, in shared memory. Zeroed
// memory is the valid start state. No method takes a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/futex.h"

namespace hvd {

struct Alarm {
  ErrorCode code = ErrorCode::kInternal;
  int rank = -1;  // the rank that it is about, or that raised it
  std::string text;
  std::vector<int> ranks = {};  // see Subject
  std::string operation = {};
};

class Alarms {
 public:
  // Longer texts of an alarm are cut off. Its ranks always fit.
  static constexpr std::size_t kMostTextBytes = 1023;
  static constexpr std::size_t kMostOperationBytes = 255;

  // `size`: ranks of the world.
  static std::size_t region_bytes(int size);

  // `base` is the start of the alarms' part of a region that outlives this object.
  Alarms(std::byte* base, int size);

  // Moves whenever a rank leaves or dies or raises an alarm.
  std::uint32_t count() const;
  void touch();                    // a rank's liveness changed
  void raise(const Alarm& alarm);  // the first one is kept
  std::optional<Alarm> first() const;

  // Remembers the first rank that shut down. Later ones may have left because of it.
  void note_departure(int rank);
  std::optional<int> first_departure() const;

 private:
  struct Words;
  std::vector<int> ranks() const;

  Words* const words_;
  const std::span<std::uint32_t> rank_bits_;  // a bit for each rank, after the words
};

}  // namespace hvd
