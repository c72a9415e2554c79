#include "transport/shared_mutex.h"

namespace hvd {

namespace {
constexpr int kSpins = 100;
constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr std::uint32_t kSleepers = 1U << 31;
}  // namespace

void SharedMutex::lock(int rank, const HolderCheck& check) {
  const auto mine = static_cast<std::uint32_t>(rank) + 1;
  for (int spin = 0; spin < kSpins; ++spin) {
    std::uint32_t free = 0;
    if (word_.compare_exchange_weak(free, mine, std::memory_order_acquire)) return;
    cpu_relax();
  }
  std::uint32_t waited_for = 0;
  std::int64_t since_ns = now_ns();
  for (;;) {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    if (seen == 0) {
      // Others may still sleep, so the bit stays set. At worst one wake-up is not needed.
      if (word_.compare_exchange_strong(seen, mine | kSleepers, std::memory_order_acquire)) return;
      continue;
    }
    if ((seen & kSleepers) == 0 && !word_.compare_exchange_strong(seen, seen | kSleepers)) continue;
    futex_wait(word_, seen | kSleepers, kSlice);
    const std::uint32_t holder = word_.load(std::memory_order_relaxed) & ~kSleepers;
    if (holder != waited_for) {
      waited_for = holder;
      since_ns = now_ns();
    }
    if (holder != 0) check(static_cast<int>(holder) - 1, Nanoseconds(now_ns() - since_ns));
  }
}

void SharedMutex::unlock() {
  // Sequentially consistent: other threads see what was written under the lock before the caller
  // looks for sleepers.
  if ((word_.exchange(0, std::memory_order_seq_cst) & kSleepers) != 0) futex_wake_one(word_);
}

}  // namespace hvd
