// How elements of different ranks combine. The numbers are the public constants of the Python API.
#pragma once

#include <cstdint>

namespace hvd {

enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};
inline constexpr int kReduceOpCount = 6;

inline constexpr const char* kReduceOpNames[kReduceOpCount] = {"Average", "Sum", "Adasum",
                                                               "Min",     "Max", "Product"};

constexpr const char* name_of(ReduceOp op) {
  return static_cast<int>(op) < kReduceOpCount ? kReduceOpNames[static_cast<int>(op)]
                                               : "unknown reduce op";
}

}  // namespace hvd
