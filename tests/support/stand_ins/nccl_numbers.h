// The numbers of NCCL's types, for its stand-in.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stand_in {

enum Type : int {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kHalf,
  kFloat,
  kDouble,
  kBfloat
};

inline std::size_t size_of(int type) {
  constexpr std::array<std::size_t, 10> kSizes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[static_cast<std::size_t>(type)];
}

template <typename Value>
Value get(const void* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename Value>
void put(void* at, double number) {
  const auto value = static_cast<Value>(number);
  std::memcpy(at, &value, sizeof value);
}

inline double half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// For numbers that float16 holds exactly.
inline std::uint16_t half_of(double number) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (half(static_cast<std::uint16_t>(bits)) == number) return static_cast<std::uint16_t>(bits);
  }
  return 0x7e00;
}

inline double number_at(const std::byte* at, int type) {
  switch (type) {
    case kInt8:
      return get<std::int8_t>(at);
    case kUint8:
      return get<std::uint8_t>(at);
    case kInt32:
      return get<std::int32_t>(at);
    case kInt64:
      return static_cast<double>(get<std::int64_t>(at));
    case kHalf:
      return half(get<std::uint16_t>(at));
    case kFloat:
      return get<float>(at);
    case kBfloat: {
      const std::uint32_t bits = std::uint32_t{get<std::uint16_t>(at)} << 16;
      return get<float>(&bits);
    }
    default:
      return get<double>(at);
  }
}

inline void put_number(std::byte* at, int type, double number) {
  switch (type) {
    case kInt8:
      return put<std::int8_t>(at, number);
    case kUint8:
      return put<std::uint8_t>(at, number);
    case kInt32:
      return put<std::int32_t>(at, number);
    case kInt64:
      return put<std::int64_t>(at, number);
    case kHalf: {
      const std::uint16_t bits = half_of(number);
      std::memcpy(at, &bits, 2);
      return;
    }
    case kFloat:
      return put<float>(at, number);
    case kBfloat: {
      const auto value = static_cast<float>(number);
      std::memcpy(at, reinterpret_cast<const std::byte*>(&value) + 2, 2);
      return;
    }
    default:
      return put<double>(at, number);
  }
}

inline double combine(int op, double first, double second) {
  if (op == 1) return first * second;
  if (op == 2) return std::max(first, second);
  if (op == 3) return std::min(first, second);
  return first + second;
}

}  // namespace stand_in
