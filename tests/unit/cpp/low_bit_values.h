// Values for the tests of low-bit formats, and the way through a format and back.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/low_bit.h"

namespace hvd::low_bit_tests {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline const std::byte* bytes_of(const Floats& floats) {
  return reinterpret_cast<const std::byte*>(floats.data());
}

inline Bytes coded(LinkFormat format, const Floats& values, float* errors = nullptr,
                   float factor = 1, Rounding rounding = {}) {
  Bytes result(low_bit_bytes(format, values.size()));
  encode(format, Dtype::kFloat32, bytes_of(values), values.size(), result.data(),
         {errors, factor, rounding});
  return result;
}

inline Floats decoded(LinkFormat format, const Bytes& code, std::size_t count, float factor = 1) {
  Floats result(count);
  decode(format, Dtype::kFloat32, code.data(), count, reinterpret_cast<std::byte*>(result.data()),
         factor);
  return result;
}

inline Floats through(LinkFormat format, const Floats& values, float* errors = nullptr) {
  return decoded(format, coded(format, values, errors), values.size());
}

inline Floats by_chance(LinkFormat format, const Floats& values, std::uint64_t seed,
                        float* errors = nullptr) {
  return decoded(format, coded(format, values, errors, 1, {true, seed}), values.size());
}

// Blocks of very different magnitudes, elements of one block over some of them.
inline Floats random_floats(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-140, 120);
  Floats values(count);
  int power = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 100 == 0) power = exponent(random);
    values[i] = std::ldexp(normal(random), power - static_cast<int>(random() % 12));
  }
  return values;
}

// Of the elements that have the same scale as one.
inline float largest_beside(LinkFormat format, const Floats& values, std::size_t index) {
  const std::size_t group = format == LinkFormat::kMxfp8 ? 32 : kLowBitBlock;
  const std::size_t begin = index / group * group;
  const std::size_t end = std::min(begin + group, values.size());
  float largest = 0;
  for (std::size_t i = begin; i < end; ++i) {
    if (std::isfinite(values[i])) largest = std::max(largest, std::fabs(values[i]));
  }
  return largest;
}

// Half a step, and a hair more than the format gives, for the roundings on the way.
inline float bound(LinkFormat format, float value, float largest) {
  constexpr float kHair = 1.0001F;
  if (format == LinkFormat::kInt8) return std::max(largest / 126 * 0.501F, 0x1p-127F);
  if (format == LinkFormat::kInt4) return std::max(largest / 6 * 0.501F, 0x1p-127F);
  const float scale = largest / (format == LinkFormat::kMxfp8 ? 208 : 416);
  const float step = std::max(scale * 0x1p-9F, 0x1p-126F);
  return std::max(std::fabs(value) * 0x1p-4F, step / 2) * kHair;
}

}  // namespace hvd::low_bit_tests
