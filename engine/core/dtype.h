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

constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUint8:
    case Dtype::kInt8:
    case Dtype::kBool:
      return 1;
    case Dtype::kInt16:
    case Dtype::kUint16:
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return 2;
    case Dtype::kInt32:
    case Dtype::kFloat32:
      return 4;
    case Dtype::kInt64:
    case Dtype::kFloat64:
      return 8;
  }
  return 0;
}

constexpr bool is_float(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32 ||
         dtype == Dtype::kFloat64;
}

constexpr const char* name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUint8:
      return "uint8";
    case Dtype::kInt8:
      return "int8";
    case Dtype::kInt16:
      return "int16";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt64:
      return "int64";
    case Dtype::kFloat16:
      return "float16";
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kFloat64:
      return "float64";
    case Dtype::kBool:
      return "bool";
    case Dtype::kBfloat16:
      return "bfloat16";
    case Dtype::kUint16:
      return "uint16";
  }
  return "unknown dtype";
}

}  // namespace hvd
