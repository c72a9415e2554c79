// One monotonic clock for waits, deadlines and recorded events.
#pragma once

#include <chrono>
#include <cstdint>

namespace hvd {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<Nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace hvd
