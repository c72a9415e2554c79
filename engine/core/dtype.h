// Element types that the engine moves and reduces.
//
// The numbers are part of the seam: bindings send them, peers compare them, so they never change.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

enum class Dtype : std::uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kBool = 8,
  kBfloat16 = 9,
  kUint16 = 10,
};

inline constexpr int kDtypeCount = 11;

// Plain arrays: kernels are compiled with flags of their own and must emit no shared functions.
inline constexpr std::size_t kDtypeBytes[kDtypeCount] = {1, 1, 2, 4, 8, 2, 4, 8, 1, 2, 2};
inline constexpr const char* kDtypeNames[kDtypeCount] = {"uint8", "int8",     "int16",   "int32",
                                                         "int64", "float16",  "float32", "float64",
                                                         "bool",  "bfloat16", "uint16"};

constexpr std::size_t size_of(Dtype dtype) {
  return static_cast<int>(dtype) < kDtypeCount ? kDtypeBytes[static_cast<int>(dtype)] : 0;
}

constexpr bool is_float(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32 ||
         dtype == Dtype::kFloat64;
}

constexpr const char* name_of(Dtype dtype) {
  return static_cast<int>(dtype) < kDtypeCount ? kDtypeNames[static_cast<int>(dtype)]
                                               : "unknown dtype";
}

}  // namespace hvd
