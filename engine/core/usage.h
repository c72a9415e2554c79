// What this process has used of its machine so far.
#pragma once

#include <sys/resource.h>

#include <cstdint>

#include "core/clock.h"

namespace hvd {

struct Usage {
  std::int64_t elapsed_ns = 0;
  std::int64_t cpu_ns = 0;       // of all threads
  std::int64_t kernel_ns = 0;    // the part of it inside the kernel
  std::int64_t page_faults = 0;  // without those that read a disk

  Usage since(const Usage& earlier) const {
    return {.elapsed_ns = elapsed_ns - earlier.elapsed_ns,
            .cpu_ns = cpu_ns - earlier.cpu_ns,
            .kernel_ns = kernel_ns - earlier.kernel_ns,
            .page_faults = page_faults - earlier.page_faults};
  }
};

inline Usage usage_now() {
  rusage found{};
  getrusage(RUSAGE_SELF, &found);  // cannot fail: its arguments are right
  const auto nanoseconds = [](const timeval& time) {
    return (std::int64_t{time.tv_sec} * 1'000'000 + time.tv_usec) * 1000;
  };
  const std::int64_t kernel_ns = nanoseconds(found.ru_stime);
  return {.elapsed_ns = now_ns(),
          .cpu_ns = nanoseconds(found.ru_utime) + kernel_ns,
          .kernel_ns = kernel_ns,
          .page_faults = found.ru_minflt};
}

}  // namespace hvd
