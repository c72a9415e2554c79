// float16 conversion by the instructions of F16C and AVX-512F.
//
// Included by reduce_avx2.cc and reduce_avx512.cc only. A signalling NaN becomes quiet, the payload
// stays; portable_half.h gives the same bits.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/vectors.h"

namespace hvd {
namespace {

inline constexpr int kToNearestEven = _MM_FROUND_TO_NEAREST_INT;

struct F16c {
  template <int kLanes>
  [[gnu::always_inline]] static Vector<float, kLanes> half_to_float(
      Vector<std::uint16_t, kLanes> half) {
    if constexpr (kLanes == 16) {
      return as<Vector<float, 16>>(_mm512_maskz_cvtph_ps(0xffff, as<__m256i>(half)));
    } else if constexpr (kLanes == 8) {
      return as<Vector<float, 8>>(_mm256_cvtph_ps(as<__m128i>(half)));
    } else if constexpr (kLanes == 4) {
      const auto bits = as<std::int64_t>(half);
      return as<Vector<float, 4>>(_mm_cvtph_ps(_mm_cvtsi64_si128(bits)));
    } else {
      static_assert(kLanes == 1);
      return Vector<float, 1>{_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half[0])))};
    }
  }

  template <int kLanes>
  [[gnu::always_inline]] static Vector<std::uint16_t, kLanes> float_to_half(
      Vector<float, kLanes> lanes) {
    using Half = Vector<std::uint16_t, kLanes>;
    if constexpr (kLanes == 16) {
      return as<Half>(_mm512_maskz_cvtps_ph(0xffff, as<__m512>(lanes), kToNearestEven));
    } else if constexpr (kLanes == 8) {
      return as<Half>(_mm256_cvtps_ph(as<__m256>(lanes), kToNearestEven));
    } else if constexpr (kLanes == 4) {
      const __m128i half = _mm_cvtps_ph(as<__m128>(lanes), kToNearestEven);
      return as<Half>(_mm_cvtsi128_si64(half));
    } else {
      static_assert(kLanes == 1);
      const __m128i half = _mm_cvtps_ph(_mm_set_ss(lanes[0]), kToNearestEven);
      return Half{static_cast<std::uint16_t>(_mm_cvtsi128_si32(half))};
    }
  }
};

}  // namespace
}  // namespace hvd
