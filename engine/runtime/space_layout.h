// Where things lie in the shared space of a host's ranks: presence, alarms, each rank's flight
// recorder, then one part for each process set. Memory exists only for what was touched.
#pragma once

#include <cstddef>

#include "control/alarms.h"
#include "runtime/process_set_context.h"
#include "trace/recorder.h"
#include "transport/presence.h"

namespace hvd {

// Process sets that may exist at one time, the world included.
inline constexpr int kMaxProcessSets = 1024;

// `size`: ranks of the world.
struct SpaceLayout {
  int size;

  std::size_t alarms_offset() const { return Presence::region_bytes(size); }
  // Of presence and alarms, in whole pages.
  std::size_t words_bytes() const {
    constexpr std::size_t kPage = 4096;
    return (alarms_offset() + Alarms::region_bytes(size) + kPage - 1) / kPage * kPage;
  }
  std::size_t recorder_offset(int rank) const {
    return words_bytes() + static_cast<std::size_t>(rank) * Recorder::region_bytes();
  }
  std::size_t set_bytes() const { return ProcessSetContext::region_bytes(size); }
  std::size_t set_offset(int set) const {
    return recorder_offset(size) + static_cast<std::size_t>(set) * set_bytes();
  }
  std::size_t bytes() const { return set_offset(kMaxProcessSets); }
};

}  // namespace hvd
