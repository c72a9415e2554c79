// The scales of a block of low-bit codes: a word in front of the codes.
//
// A class of scales divides the block into kGroups equal runs of elements, each with a scale of its
// own. kPlainBelow: a block whose magnitudes are all below it needs no care: neither codes for
// values that are not finite nor `limited`. `word_of` takes the bits of the largest finite
// magnitude of each group.
//
// Included by the reduce_<isa>.cc files only; see vectors.h for why all of it is unnamed.
#pragma once

#include <cstdint>

#include "kernels/low_bit_codes.h"
#include "kernels/vectors.h"

namespace hvd {
namespace {

inline constexpr std::int32_t kInfinityBits = 0x7f800000;

// A float32 for the whole block, without its lowest byte: the lowest bit marks a block with values
// that are not finite.
template <class Code>
struct OneScale {
  static constexpr int kGroups = 1;
  static constexpr std::int32_t kPlainBelow = kInfinityBits;
  static constexpr bool kHasMark = true;
  static constexpr std::uint32_t kMark = 1;

  template <bool kIsPlain>
  [[gnu::always_inline]] static std::uint32_t word_of(const std::int32_t (&largest)[kGroups]) {
    constexpr float kLargest = kIsPlain ? Code::kLargest : Code::kLargestBesideMarks;
    const float exact = __builtin_bit_cast(float, largest[0]) / kLargest;
    const float scale = exact > Code::kLeastScale ? exact : Code::kLeastScale;
    return (__builtin_bit_cast(std::uint32_t, scale) & kScaleBits) | (kIsPlain ? 0U : kMark);
  }
  [[gnu::always_inline]] static void unpack(std::uint32_t word, float (&scales)[kGroups]) {
    scales[0] = __builtin_bit_cast(float, word& kScaleBits);
  }
  template <class Floats>
  [[gnu::always_inline]] static Floats limited(Floats lanes) {
    return lanes;
  }

 private:
  static constexpr std::uint32_t kScaleBits = 0xffffff00U;
};

// Four powers of two, each for 32 elements: the scales of OCP Microscaling (MX) 1.0, whose E8M0 is
// the exponent of a float32 in a byte. A scale is the least power with which the largest element is
// at most kLargest. MX itself takes half of it where that is below 512, and cuts the element off.
//
// No bit is left for a mark, and no exponent is: a block has finite elements beside the others, and
// needs its scales for them. So the codes of infinities and NaN stand for them in every block, and
// who decodes looks for them.
//
// Beside an element above 416 * 2^119 the scale is 2^120, and a code above 240 would be infinite.
// So elements are limited to 240 * 2^120, which is at most 1/16 off, as any other code.
struct PowersOfTwo {
  static constexpr int kGroups = 4;
  static constexpr float kMost = 240 * 0x1p120F;
  static constexpr std::int32_t kPlainBelow = __builtin_bit_cast(std::int32_t, kMost) + 1;
  static constexpr bool kHasMark = false;

  template <bool kIsPlain>
  [[gnu::always_inline]] static std::uint32_t word_of(const std::int32_t (&largest)[kGroups]) {
    std::uint32_t word = 0;
    for (int group = 0; group < kGroups; ++group) {
      // A mantissa above that of kLargest carries into the exponent.
      const std::int32_t exponent = ((largest[group] + kCarry) >> 23) - kLargestPower;
      const std::int32_t kept = exponent > kLeastExponent ? exponent : kLeastExponent;
      word |= static_cast<std::uint32_t>(kept) << (8 * group);
    }
    return word;
  }
  [[gnu::always_inline]] static void unpack(std::uint32_t word, float (&scales)[kGroups]) {
    for (int group = 0; group < kGroups; ++group) {
      scales[group] = __builtin_bit_cast(float, ((word >> (8 * group)) & 0xffU) << 23);
    }
  }
  template <class Floats>
  [[gnu::always_inline]] static Floats limited(Floats lanes) {
    lanes = lanes > kMost ? Floats{} + kMost : lanes;
    return lanes < -kMost ? Floats{} - kMost : lanes;
  }

 private:
  static constexpr std::int32_t kLargestBits = __builtin_bit_cast(std::int32_t, Fp8Code::kLargest);
  static constexpr std::int32_t kLargestPower = (kLargestBits >> 23) - 127;
  static constexpr std::int32_t kCarry = 0x7fffff - (kLargestBits & 0x7fffff);
  static constexpr std::int32_t kLeastExponent =
      __builtin_bit_cast(std::int32_t, Fp8Code::kLeastScale) >> 23;
};

}  // namespace
}  // namespace hvd
