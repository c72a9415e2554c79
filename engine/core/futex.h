// Sleeping on a 32-bit word that may live in memory shared between processes.
//
// A sleeper states the value it saw; the kernel puts it to sleep only if the word still holds it.
// Every sleep has a timeout, so a lost wake-up costs time, never a hang.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/clock.h"

namespace hvd {

using SharedWord = std::atomic<std::uint32_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == 4);

// Returns after a wake-up, a signal, the timeout, or at once when the word differs from `seen`.
void futex_wait(SharedWord& word, std::uint32_t seen, Nanoseconds timeout);

void futex_wake_all(SharedWord& word);
void futex_wake_one(SharedWord& word);

// Tells the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace hvd
