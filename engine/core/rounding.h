// How a value between two codes of a low-bit format is rounded.
#pragma once

#include <cstdint>

#include "core/hash.h"

namespace hvd {

struct Rounding {
  // Up or down by chance, the nearer code more often, so that the mean is exact; else to nearest
  // even.
  bool is_stochastic = false;
  std::uint64_t seed = 0;  // equal seeds give equal chances

  // With chances of their own for each number.
  constexpr Rounding of(std::uint64_t number) const {
    return is_stochastic ? Rounding{true, mix64(seed ^ mix64(number + 1))} : *this;
  }
};

}  // namespace hvd
