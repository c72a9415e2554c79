// The codes of low-bit formats: lanes in units of the block's scale into bytes, and back.
//
// `encode` rounds to nearest even. `encode_by_chance` takes random bits for each lane, and the
// largest code that the block has: what is beyond becomes that code.
//
// Included by the reduce_<isa>.cc files only; see vectors.h for why all of it is unnamed. A code
// class has its largest finite value, its least scale (so that no product is subnormal), and bytes
// for values that are not finite.
#pragma once

#include <cstdint>

#include "kernels/vectors.h"

namespace hvd {
namespace {

// Lanes that were coded: a code in each word, and the values that the codes stand for.
template <int kLanes>
struct Coded {
  Vector<std::uint32_t, kLanes> codes;
  Vector<float, kLanes> values;
};

// Of the upper 16 bits: multiples of 2^-16 above -1/2 and below 1/2. None is a half, and their sum
// with a code is exact, so that no code becomes another one.
template <int kLanes>
[[gnu::always_inline]] inline Vector<float, kLanes> noise_of(Vector<std::uint32_t, kLanes> random) {
  const auto odd = (as<Vector<std::int32_t, kLanes>>(random) >> 16) | 1;
  return __builtin_convertvector(odd, Vector<float, kLanes>) * 0x1p-16F;
}

// Integers in two's complement. The most negative one stands for NaN, and what follows the finite
// ones on both sides for the infinities. In a block without these kLargest is finite.
template <int kCodeBits, int kMost, int kMostBesideMarks>
struct IntegerCode {
  static constexpr int kBits = kCodeBits;
  static constexpr std::uint32_t kMask = (1U << kBits) - 1;
  static constexpr float kLargest = kMost;
  static constexpr float kLargestBesideMarks = kMostBesideMarks;
  static constexpr float kLeastScale = 0x1p-126F;
  static constexpr std::uint32_t kNan = 1U << (kBits - 1);
  static constexpr std::uint32_t kInfinity = kNan - 1;
  static constexpr std::uint32_t kMinusInfinity = kNan + 1;

  template <int kLanes>
  [[gnu::always_inline]] static Coded<kLanes> encode(Vector<float, kLanes> lanes) {
    // The unit of this number is 1: the addition rounds to nearest even, and the integer is in the
    // low bits.
    constexpr float kRounding = 0x1.8p23F;
    const Vector<float, kLanes> shifted = lanes + kRounding;
    return {as<Vector<std::uint32_t, kLanes>>(shifted) & kMask, shifted - kRounding};
  }
  template <int kLanes>
  [[gnu::always_inline]] static Coded<kLanes> encode_by_chance(Vector<float, kLanes> lanes,
                                                               Vector<std::uint32_t, kLanes> random,
                                                               float largest) {
    lanes = lanes > largest ? Vector<float, kLanes>{} + largest : lanes;
    lanes = lanes < -largest ? Vector<float, kLanes>{} - largest : lanes;
    return encode<kLanes>(lanes + noise_of<kLanes>(random));
  }
  template <int kLanes>
  [[gnu::always_inline]] static Vector<float, kLanes> decode(Vector<std::uint32_t, kLanes> codes) {
    constexpr int kShift = 32 - kBits;
    const auto integers = as<Vector<std::int32_t, kLanes>>(codes << kShift) >> kShift;
    return __builtin_convertvector(integers, Vector<float, kLanes>);
  }
};
using Int8Code = IntegerCode<8, 126, 126>;
using Int4Code = IntegerCode<4, 7, 6>;

// e4m3: 4 bits of exponent (bias 7), 3 of mantissa. Its largest value stands for infinity, so the
// largest finite one is 416.
struct Fp8Code {
  static constexpr int kBits = 8;
  static constexpr std::uint32_t kMask = 0xffU;
  static constexpr float kLargest = 416.0F;
  static constexpr float kLargestBesideMarks = kLargest;
  static constexpr float kLeastScale = 0x1p-117F;
  static constexpr std::uint32_t kInfinity = 0x7e;
  static constexpr std::uint32_t kMinusInfinity = 0xfe;
  static constexpr std::uint32_t kNan = 0x7f;

  template <int kLanes>
  [[gnu::always_inline]] static Coded<kLanes> encode(Vector<float, kLanes> lanes) {
    using Bits = Vector<std::uint32_t, kLanes>;
    const Bits magnitude = as<Bits>(lanes) & 0x7fffffffU;
    // Just under half a unit, plus the last kept bit: ties go to even; a carry moves the exponent.
    const Bits normal = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
    return coded_of<kLanes>(lanes, magnitude, normal, as<Vector<float, kLanes>>(magnitude));
  }
  template <int kLanes>
  [[gnu::always_inline]] static Coded<kLanes> encode_by_chance(Vector<float, kLanes> lanes,
                                                               Vector<std::uint32_t, kLanes> random,
                                                               float largest) {
    using Bits = Vector<std::uint32_t, kLanes>;
    using Floats = Vector<float, kLanes>;
    const auto limit = __builtin_bit_cast(std::int32_t, largest);
    const auto given = as<Vector<std::int32_t, kLanes>>(lanes) & 0x7fffffff;
    const Bits magnitude = as<Bits>(given > limit ? Vector<std::int32_t, kLanes>{} + limit : given);
    const Floats moved = as<Floats>(magnitude) + noise_of<kLanes>(random) * kLeast;
    return coded_of<kLanes>(lanes, magnitude, magnitude + (random & 0xfffffU),
                            moved > 0 ? moved : Floats{});
  }
  template <int kLanes>
  [[gnu::always_inline]] static Vector<float, kLanes> decode(Vector<std::uint32_t, kLanes> bytes) {
    using Bits = Vector<std::uint32_t, kLanes>;
    using Floats = Vector<float, kLanes>;
    const Bits magnitude = bytes & 0x7fU;
    const Bits normal = (magnitude << 20) + kRebias;
    // With the exponent of 2^-6 the mantissa reads 2^-6 (1 + m); what we want is 2^-6 m.
    const Bits subnormal = as<Bits>(as<Floats>(normal + kOneExponent) - 0x1p-6F);
    const auto is_subnormal = as<Vector<std::int32_t, kLanes>>(magnitude) < 8;
    return as<Floats>((is_subnormal ? subnormal : normal) | ((bytes & 0x80U) << 24));
  }

 private:
  // `normal`: the magnitude, so moved that cutting it off rounds it; `subnormal`: so moved that
  // rounding it to nearest does.
  template <int kLanes>
  [[gnu::always_inline]] static Coded<kLanes> coded_of(Vector<float, kLanes> lanes,
                                                       Vector<std::uint32_t, kLanes> magnitude,
                                                       Vector<std::uint32_t, kLanes> normal,
                                                       Vector<float, kLanes> subnormal) {
    using Bits = Vector<std::uint32_t, kLanes>;
    using Floats = Vector<float, kLanes>;
    using Ints = Vector<std::int32_t, kLanes>;  // magnitudes fit, and signed comparison is cheaper
    const Bits sign = as<Bits>(lanes) & 0x80000000U;
    const Bits kept = normal & 0xfff00000U;
    // The unit of this number is kLeast: the addition rounds to nearest even.
    constexpr float kRounding = 0x1p14F;
    const Floats shifted = subnormal + kRounding;
    const Bits small_code = as<Bits>(shifted) - (141U << 23);  // the bits of 2^14
    const auto is_subnormal = as<Ints>(magnitude) < kLeastNormal;
    const Bits code = is_subnormal ? small_code : (kept - kRebias) >> 20;
    const Bits value = is_subnormal ? as<Bits>(shifted - kRounding) : kept;
    return {code | (sign >> 24), as<Floats>(value | sign)};
  }

  static constexpr float kLeast = 0x1p-9F;  // the smallest fp8
  static constexpr std::uint32_t kRebias = 120U << 23;
  static constexpr std::uint32_t kOneExponent = 1U << 23;
  static constexpr std::int32_t kLeastNormal = 121 << 23;  // the bits of 2^-6
};

}  // namespace
}  // namespace hvd
