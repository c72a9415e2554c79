// float16 conversion by integer arithmetic, without branches, for any number of lanes.
//
// Included by reduce_portable.cc only. float16 has 5 bits of exponent (bias 15) and 10 of mantissa,
// float32 has 8 (bias 127) and 23, so magnitudes are shifted by 13 bits and rebiased by 112. All
// three ranges (normal, subnormal, inf and NaN) are computed for every lane, then selected.
#pragma once

#include <cstdint>

#include "kernels/vectors.h"

namespace hvd {
namespace {

struct PortableHalf {
  template <int kLanes>
  [[gnu::always_inline]] static Vector<float, kLanes> half_to_float(
      Vector<std::uint16_t, kLanes> half) {
    using Bits = Vector<std::uint32_t, kLanes>;
    using Floats = Vector<float, kLanes>;
    using Ints = Vector<std::int32_t, kLanes>;  // magnitudes fit, and signed comparison is cheaper
    const Bits wide = __builtin_convertvector(half, Bits);
    const Bits magnitude = (wide & 0x7fffU) << 13;
    const Bits normal = magnitude + kRebias;
    // With the exponent of 2^-14 the mantissa reads 2^-14 (1 + m); what we want is 2^-14 m.
    const Bits subnormal = as<Bits>(as<Floats>(normal + kOneExponent) - 0x1p-14F);
    const Bits infinite = normal + kRebias;
    const Bits nan = infinite | kQuietFloat;
    const auto is_subnormal = as<Ints>(magnitude) < static_cast<std::int32_t>(kOneExponent);
    const auto is_above_normal = as<Ints>(magnitude) >= (0x7c00 << 13);
    const auto is_nan = as<Ints>(magnitude) > (0x7c00 << 13);
    const Bits special = is_nan ? nan : infinite;
    const Bits finite = is_subnormal ? subnormal : normal;
    return as<Floats>((is_above_normal ? special : finite) | ((wide & 0x8000U) << 16));
  }

  template <int kLanes>
  [[gnu::always_inline]] static Vector<std::uint16_t, kLanes> float_to_half(
      Vector<float, kLanes> lanes) {
    using Bits = Vector<std::uint32_t, kLanes>;
    using Floats = Vector<float, kLanes>;
    using Ints = Vector<std::int32_t, kLanes>;
    const Bits bits = as<Bits>(lanes);
    const Bits magnitude = bits & 0x7fffffffU;
    // Just under half a unit, plus the last kept bit: ties go to even; a carry moves the exponent.
    const Bits normal = (magnitude - kRebias + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    // The unit of 0.5F is 2^-24, the smallest float16: the addition itself rounds to nearest even.
    const Bits subnormal = as<Bits>(as<Floats>(magnitude) + 0.5F) - kHalfFloat;
    const Bits nan = ((magnitude >> 13) & 0x3ffU) | 0x7e00U;
    const auto is_subnormal = as<Ints>(magnitude) < ((127 - 14) << 23);
    const auto is_too_large = as<Ints>(magnitude) >= ((127 + 16) << 23);
    const auto is_nan = as<Ints>(magnitude) > (255 << 23);
    const Bits infinite = Bits{} + 0x7c00U;
    const Bits special = is_nan ? nan : infinite;
    const Bits finite = is_subnormal ? subnormal : normal;
    const Bits half = (is_too_large ? special : finite) | ((bits >> 16) & 0x8000U);
    using Half = Vector<std::uint16_t, kLanes>;
    return __builtin_convertvector(half, Half);
  }

 private:
  static constexpr std::uint32_t kRebias = 112U << 23;
  static constexpr std::uint32_t kOneExponent = 1U << 23;
  static constexpr std::uint32_t kQuietFloat = 1U << 22;
  static constexpr std::uint32_t kHalfFloat = 126U << 23;  // the bits of 0.5F
};

}  // namespace
}  // namespace hvd
