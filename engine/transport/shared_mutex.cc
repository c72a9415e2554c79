#include "transport/shared_mutex.h"

#include "core/error.h"

namespace hvd {

namespace {
constexpr int kSpins = 100;
constexpr auto kSlice = std::chrono::milliseconds(50);
}  // namespace

void SharedMutex::lock(const SharedWord& alarm, std::uint32_t calm) {
  for (int spin = 0; spin < kSpins; ++spin) {
    std::uint32_t free = 0;
    if (word_.compare_exchange_weak(free, 1, std::memory_order_acquire)) return;
    cpu_relax();
  }
  while (word_.exchange(2, std::memory_order_acquire) != 0) {
    futex_wait(word_, 2, kSlice);
    if (alarm.load(std::memory_order_acquire) != calm && word_.load() != 0) {
      throw Error(ErrorCode::kPeerLost, "a rank left while this rank waited for the shared board");
    }
  }
}

void SharedMutex::unlock() {
  // Sequentially consistent: what was written inside is visible before the caller looks for
  // sleepers.
  if (word_.exchange(0, std::memory_order_seq_cst) == 2) futex_wake_one(word_);
}

}  // namespace hvd
