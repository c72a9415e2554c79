#include "runtime/forming_delay.h"

#include <algorithm>

namespace hvd {

namespace {

struct Eagerness {
  Nanoseconds linger;
  std::size_t enough_bytes;  // ready: do not linger
};
constexpr Eagerness kOverlap{.linger = std::chrono::microseconds(50), .enough_bytes = 1UL << 20};
constexpr Eagerness kTakeTurns{.linger = std::chrono::milliseconds(5), .enough_bytes = 64UL << 20};

// If no thread will wait, the background thread has to start soon.
const Eagerness& eagerness_of(const EngineConfig& config, const HandleTable& results) {
  return config.has_spare_cores() || results.is_unattended() ? kOverlap : kTakeTurns;
}

}  // namespace

Nanoseconds FormingDelay::linger() const {
  const std::uint32_t cycle_time_us = buckets_.cycle_time_us();
  if (cycle_time_us == 0) return eagerness_of(world_.config, results_).linger;
  return std::chrono::microseconds(cycle_time_us);
}

bool FormingDelay::is_enough(std::size_t ready_bytes) const {
  return ready_bytes >= eagerness_of(world_.config, results_).enough_bytes;
}

bool FormingDelay::may_form() {
  if (!sets_.has_ready()) {
    ready_since_ns_ = 0;
    return false;
  }
  begin();
  if (is_enough(sets_.ready_bytes()) || onlookers_.load() != 0) return true;
  return now_ns() - ready_since_ns_ >= linger().count();
}

void FormingDelay::begin() {
  if (ready_since_ns_ == 0) ready_since_ns_ = now_ns();
}

Nanoseconds FormingDelay::left() const {
  return std::max(Nanoseconds(ready_since_ns_ + linger().count() - now_ns()), Nanoseconds(1000));
}

}  // namespace hvd
