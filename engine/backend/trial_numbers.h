// Small numbers for the trials of GPU kernels: their dot products are the same in any order.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace hvd {

// Writes one of 1, 2, 3 and -1 (of bool: false or true), as `which` says, as element `index`.
inline void write_trial_number(std::byte* to, Dtype dtype, std::size_t index, std::size_t which) {
  constexpr std::array<std::uint16_t, 4> kHalves{0x3c00, 0x4000, 0x4200, 0xbc00};  // as float16
  const auto write = [&](auto number) {
    std::memcpy(to + index * sizeof number, &number, sizeof number);
  };
  const int value = std::array{1, 2, 3, -1}[which];
  const auto real = static_cast<float>(value);
  switch (dtype) {
    case Dtype::kFloat16:
      return write(kHalves[which]);
    case Dtype::kBfloat16:
      return write(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(real) >> 16U));
    case Dtype::kFloat32:
      return write(real);
    case Dtype::kFloat64:
      return write(static_cast<double>(value));
    case Dtype::kInt64:
      return write(static_cast<std::int64_t>(value));
    case Dtype::kInt32:
      return write(static_cast<std::int32_t>(value));
    case Dtype::kBool:
      return write(static_cast<std::uint8_t>(which % 2));
    default:
      if (size_of(dtype) == 2) return write(static_cast<std::int16_t>(value));
      return write(static_cast<std::int8_t>(value));
  }
}

}  // namespace hvd
