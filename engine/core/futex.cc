#include "core/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace hvd {

void futex_wait(SharedWord& word, std::uint32_t seen, Nanoseconds timeout) {
  const auto ns = std::max<std::int64_t>(timeout.count(), 0);
  const timespec limit{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                       .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

namespace {
void wake(SharedWord& word, int threads) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, threads, nullptr, nullptr,
          0);
}
}  // namespace

void futex_wake_all(SharedWord& word) { wake(word, INT_MAX); }
void futex_wake_one(SharedWord& word) { wake(word, 1); }

}  // namespace hvd
