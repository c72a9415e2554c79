// The layout of the shared space of a host's ranks: presence, alarms, the number of launches, each
// rank's flight recorder, then one part for each process set, then one for each pair of ranks. Only
// touched parts use memory.
#pragma once

#include <algorithm>
#include <cstddef>

#include "control/alarms.h"
#include "runtime/process_set_context.h"
#include "trace/recorder.h"
#include "transport/presence.h"

namespace hvd {

// The most process sets at one time, with the world and without pairs.
inline constexpr int kMaxProcessSets = 1024;

// `size`: ranks of the world.
struct SpaceLayout {
  static constexpr std::size_t kLine = 64;

  int size;

  std::size_t alarms_offset() const { return Presence::region_bytes(size); }
  std::size_t launches_offset() const {
    return (alarms_offset() + Alarms::region_bytes(size) + kLine - 1) / kLine * kLine;
  }
  // Of all these, in whole pages.
  std::size_t words_bytes() const {
    constexpr std::size_t kPage = 4096;
    return (launches_offset() + kLine + kPage - 1) / kPage * kPage;
  }
  std::size_t recorder_offset(int rank) const {
    return words_bytes() + static_cast<std::size_t>(rank) * Recorder::region_bytes();
  }
  std::size_t set_bytes(int set) const {
    return ProcessSetContext::region_bytes(set < kMaxProcessSets ? size : 2);
  }
  std::size_t set_offset(int set) const {
    const int sets = std::min(set, kMaxProcessSets);
    return recorder_offset(size) + static_cast<std::size_t>(sets) * set_bytes(0) +
           static_cast<std::size_t>(set - sets) * set_bytes(kMaxProcessSets);
  }
  // The number of the set of two ranks, for messages. Both ranks can compute it.
  int pair_set(int low, int high) const { return kMaxProcessSets + high * (high - 1) / 2 + low; }
  int set_count() const { return pair_set(0, size); }
  std::size_t bytes() const { return set_offset(set_count()); }
};

}  // namespace hvd
