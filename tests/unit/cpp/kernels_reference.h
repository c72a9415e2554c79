// A scalar reference for the kernels that shares no code with them: slow, one element at a time,
// 16-bit floats by ldexp and nearbyint. Used by kernels_test.cc only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/reduce.h"

namespace hvd::kernels_reference {

using Bytes = std::vector<std::byte>;

// A 16-bit float, bits and value. kMantissa: stored bits of it; kMinExponent: of the smallest
// normal.
template <int kMantissa, int kMinExponent>
struct Small {
  static constexpr unsigned kInfinity = 0x7fffU >> kMantissa << kMantissa;

  static float decode(std::uint16_t bits) {
    const int exponent = (bits & 0x7fff) >> kMantissa;
    const int mantissa = bits & ((1 << kMantissa) - 1);
    float value = 0;
    if ((bits & kInfinity) == kInfinity) {
      value = mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                            : std::numeric_limits<float>::infinity();
    } else if (exponent == 0) {
      value = std::ldexp(static_cast<float>(mantissa), kMinExponent - kMantissa);
    } else {
      const int significand = mantissa + (1 << kMantissa);
      value = std::ldexp(static_cast<float>(significand), kMinExponent + exponent - 1 - kMantissa);
    }
    return (bits & 0x8000) != 0 ? -value : value;
  }

  static std::uint16_t encode(float value) {
    const unsigned sign = std::signbit(value) ? 0x8000U : 0U;
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | kInfinity | 1U);
    if (value == 0 || std::isinf(value)) return sign | (value == 0 ? 0U : kInfinity);
    const int exponent = std::max(std::ilogb(value), kMinExponent);
    const double units = std::ldexp(std::fabs(double{value}), kMantissa - exponent);
    const unsigned rounded = static_cast<unsigned>(std::nearbyint(units));  // ties to even
    const unsigned bits = (static_cast<unsigned>(exponent - kMinExponent) << kMantissa) + rounded;
    return static_cast<std::uint16_t>(sign | std::min(bits, kInfinity));
  }
};

struct Half : Small<10, -14> {};
struct Brain : Small<7, -126> {};

template <class T>
T element(const Bytes& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void set_element(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* begin = reinterpret_cast<const std::byte*>(values.data());
  return Bytes(begin, begin + values.size() * sizeof(T));
}

template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = element<T>(bytes, i);
  return values;
}

// `volatile` keeps a compiler from fusing the products with the sums around them.
template <class Acc>
Acc float_reference(const ReduceSpec& spec, const std::vector<Acc>& values) {
  const bool is_average = spec.op == ReduceOp::kAverage;
  const Acc prescale = static_cast<Acc>(spec.prescale);
  const Acc postscale = static_cast<Acc>(spec.postscale / (is_average ? spec.divisor : 1));
  volatile Acc total = values[0] * prescale;
  for (std::size_t i = 1; i < values.size(); ++i) {
    volatile Acc next = values[i] * prescale;
    if (spec.op == ReduceOp::kSum || is_average) total = total + next;
    if (spec.op == ReduceOp::kProduct) total = total * next;
    if (spec.op == ReduceOp::kMin && !std::isnan(total) && !(total <= next)) total = next;
    if (spec.op == ReduceOp::kMax && !std::isnan(total) && !(total >= next)) total = next;
  }
  return total * postscale;
}

template <class T>
T scaled_reference(T value, double factor) {
  if (factor == 1.0) return value;
  const long double product = std::trunc(static_cast<double>(value) * factor);
  const long double least = std::numeric_limits<T>::min();
  const long double most = std::numeric_limits<T>::max();
  return static_cast<T>(std::min(std::max(product, least), most));
}

template <class T>
T integer_reference(const ReduceSpec& spec, const std::vector<T>& values) {
  T total = scaled_reference(values[0], spec.prescale);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const T next = scaled_reference(values[i], spec.prescale);
    const auto left = static_cast<std::uint64_t>(total);
    const auto right = static_cast<std::uint64_t>(next);
    if (spec.op == ReduceOp::kMin) {
      total = std::min(total, next);
    } else if (spec.op == ReduceOp::kMax) {
      total = std::max(total, next);
    } else {
      total = static_cast<T>(spec.op == ReduceOp::kProduct ? left * right : left + right);
    }
  }
  if (spec.op != ReduceOp::kAverage) return scaled_reference(total, spec.postscale);
  if (spec.postscale == 1.0) return static_cast<T>(std::int64_t{total} / spec.divisor);
  return scaled_reference(total, spec.postscale / spec.divisor);
}

inline bool bool_reference(const ReduceSpec& spec, const std::vector<std::uint8_t>& values) {
  const bool is_any = spec.op == ReduceOp::kSum || spec.op == ReduceOp::kMax;
  for (const std::uint8_t value : values) {
    if ((value != 0) == is_any) return is_any;
  }
  return !is_any;
}

// result[i] = combine(decode(source[i]) of all sources).
template <class T, class Decode, class Combine>
Bytes combine_all(const std::vector<Bytes>& sources, Decode decode, Combine combine) {
  Bytes result(sources[0].size());
  std::vector<decltype(decode(T{}))> values(sources.size());
  for (std::size_t i = 0; i < result.size() / sizeof(T); ++i) {
    for (std::size_t s = 0; s < sources.size(); ++s) values[s] = decode(element<T>(sources[s], i));
    set_element<T>(result, i, combine(values));
  }
  return result;
}

template <class T>
Bytes plain_reference(const ReduceSpec& spec, const std::vector<Bytes>& sources) {
  return combine_all<T>(
      sources, [](T value) { return value; },
      [&](const std::vector<T>& values) -> T {
        if constexpr (std::is_integral_v<T>)
          return integer_reference<T>(spec, values);
        else
          return float_reference<T>(spec, values);
      });
}

template <class Format>
Bytes small_reference(const ReduceSpec& spec, const std::vector<Bytes>& sources) {
  return combine_all<std::uint16_t>(sources, Format::decode, [&](const std::vector<float>& values) {
    return Format::encode(float_reference<float>(spec, values));
  });
}

inline Bytes reference(const ReduceSpec& spec, const std::vector<Bytes>& sources) {
  switch (spec.dtype) {
    case Dtype::kUint8:
      return plain_reference<std::uint8_t>(spec, sources);
    case Dtype::kInt8:
      return plain_reference<std::int8_t>(spec, sources);
    case Dtype::kUint16:
      return plain_reference<std::uint16_t>(spec, sources);
    case Dtype::kInt16:
      return plain_reference<std::int16_t>(spec, sources);
    case Dtype::kInt32:
      return plain_reference<std::int32_t>(spec, sources);
    case Dtype::kInt64:
      return plain_reference<std::int64_t>(spec, sources);
    case Dtype::kFloat32:
      return plain_reference<float>(spec, sources);
    case Dtype::kFloat64:
      return plain_reference<double>(spec, sources);
    case Dtype::kFloat16:
      return small_reference<Half>(spec, sources);
    case Dtype::kBfloat16:
      return small_reference<Brain>(spec, sources);
    case Dtype::kBool:
      break;
  }
  return combine_all<std::uint8_t>(
      sources, [](std::uint8_t value) { return value; },
      [&](const auto& values) -> std::uint8_t { return bool_reference(spec, values) ? 1 : 0; });
}

}  // namespace hvd::kernels_reference
