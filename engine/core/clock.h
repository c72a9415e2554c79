// One monotonic clock for waits, deadlines and recorded events, and the time of day for files.
#pragma once

#include <chrono>
#include <cstdint>

namespace hvd {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<Nanoseconds>(Clock::now().time_since_epoch()).count();
}

inline std::int64_t epoch_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<Nanoseconds>(now).count();
}

constexpr Nanoseconds kForever = std::chrono::hours(24);  // a wait that a wake-up ends

}  // namespace hvd
