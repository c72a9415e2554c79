#include "trace/recorder.h"

namespace hvd {

std::vector<Event> Recorder::snapshot() const {
  const std::uint64_t end = next_.load(std::memory_order_acquire);
  const std::uint64_t begin = end > kCapacity ? end - kCapacity : 0;
  std::vector<Event> events;
  events.reserve(end - begin);
  for (std::uint64_t index = begin; index < end; ++index) {
    const Cell& cell = cells_[index % kCapacity];
    if (cell.turn.load(std::memory_order_acquire) != index + 1) continue;
    const std::uint64_t what = cell.what.load(std::memory_order_acquire);
    const Event event{.time_ns = cell.time_ns.load(std::memory_order_acquire),
                      .kind = static_cast<EventKind>(what >> 32),
                      .subject = static_cast<std::uint32_t>(what),
                      .value = cell.value.load(std::memory_order_acquire)};
    if (cell.turn.load(std::memory_order_relaxed) == index + 1) events.push_back(event);
  }
  return events;
}

}  // namespace hvd
