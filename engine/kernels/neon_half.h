// float16 conversion by the instructions of arm64.
//
// Included by reduce_portable.cc on arm64 only. A signalling NaN becomes quiet, the payload stays;
// f16c.h and portable_half.h give the same bits.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels/vectors.h"

namespace hvd {
namespace {

struct NeonHalf {
  template <int kLanes>
  [[gnu::always_inline]] static Vector<float, kLanes> half_to_float(
      Vector<std::uint16_t, kLanes> half) {
    if constexpr (kLanes == 4) {
      return as<Vector<float, 4>>(vcvt_f32_f16(as<float16x4_t>(half)));
    } else {
      static_assert(kLanes == 1);
      return Vector<float, 1>{static_cast<float>(as<__fp16>(half))};
    }
  }

  template <int kLanes>
  [[gnu::always_inline]] static Vector<std::uint16_t, kLanes> float_to_half(
      Vector<float, kLanes> lanes) {
    if constexpr (kLanes == 4) {
      return as<Vector<std::uint16_t, 4>>(vcvt_f16_f32(as<float32x4_t>(lanes)));
    } else {
      static_assert(kLanes == 1);
      return as<Vector<std::uint16_t, 1>>(static_cast<__fp16>(lanes[0]));
    }
  }
};

}  // namespace
}  // namespace hvd
