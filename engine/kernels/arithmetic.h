// What happens to lanes: the reduce ops, and the scaling before and after them.
//
// Included by the reduce_<isa>.cc files only; see vectors.h for why all of it is unnamed.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/vectors.h"

namespace hvd {
namespace {

// Reduce ops: accumulated so far, next source -> accumulated. Integers are unsigned here for Add
// and Multiply, so they wrap around.

struct Add {
  template <class V>
  [[gnu::always_inline]] static V apply(V sum, V next) {
    return sum + next;
  }
};

struct Multiply {
  template <class V>
  [[gnu::always_inline]] static V apply(V product, V next) {
    return product * next;
  }
};

// The first NaN in source order wins. Of equal values (-0 and +0) the first one stays. This is
// written with comparisons because processors differ in how min and max treat NaN and zeros.
struct Smaller {
  template <class V>
  [[gnu::always_inline]] static V apply(V least, V next) {
    return ((least <= next) | (least != least)) ? least : next;
  }
};

struct Larger {
  template <class V>
  [[gnu::always_inline]] static V apply(V most, V next) {
    return ((most >= next) | (most != most)) ? most : next;
  }
};

struct Or {
  template <class V>
  [[gnu::always_inline]] static V apply(V any, V next) {
    return any | next;
  }
};

struct And {
  template <class V>
  [[gnu::always_inline]] static V apply(V all, V next) {
    return all & next;
  }
};

// Scalings: `before` is applied to every source, `after` to the reduced lanes. kIsVectorised tells
// whether they accept more than one lane.

struct Unscaled {
  static constexpr bool kIsVectorised = true;
  explicit Unscaled(const Block& /*block*/) {}

  template <class V>
  [[gnu::always_inline]] V before(V lanes) const {
    return lanes;
  }
  template <class V>
  [[gnu::always_inline]] V after(V lanes) const {
    return lanes;
  }
};

// Average of floats without other factors.
template <class Lane>
struct FloatMean {
  static constexpr bool kIsVectorised = true;
  explicit FloatMean(const Block& block) : factor_(static_cast<Lane>(1.0 / block.divisor)) {}

  template <class V>
  [[gnu::always_inline]] V before(V lanes) const {
    return lanes;
  }
  template <class V>
  [[gnu::always_inline]] V after(V lanes) const {
    return lanes * factor_;
  }

 private:
  Lane factor_;
};

// Any factors on floats. A divisor of 1 stands for every op but Average.
template <class Lane>
struct FloatScale {
  static constexpr bool kIsVectorised = true;
  explicit FloatScale(const Block& block)
      : prescale_(static_cast<Lane>(block.prescale)),
        postscale_(static_cast<Lane>(block.postscale / block.divisor)) {}

  template <class V>
  [[gnu::always_inline]] V before(V lanes) const {
    return lanes * prescale_;
  }
  template <class V>
  [[gnu::always_inline]] V after(V lanes) const {
    return lanes * postscale_;
  }

 private:
  Lane prescale_;
  Lane postscale_;
};

// `value * factor`, truncated toward zero. Beyond the range of T it is the nearest limit of T. NaN
// becomes 0.
template <class T>
inline T scaled_integer(T value, double factor) {
  constexpr bool kIsSigned = static_cast<T>(-1) < 0;
  constexpr int kValueBits = 8 * static_cast<int>(sizeof(T)) - (kIsSigned ? 1 : 0);
  constexpr T kMax = static_cast<T>((std::uint64_t{1} << kValueBits) - 1);
  constexpr T kMin = static_cast<T>(kIsSigned ? -kMax - 1 : 0);
  constexpr double kBeyond = static_cast<double>(std::uint64_t{1} << kValueBits);
  const double product = static_cast<double>(value) * factor;
  if (product >= kBeyond) return kMax;
  if (product <= static_cast<double>(kMin)) return kMin;
  return product == product ? static_cast<T>(product) : T{0};
}

// Any factors on integers of type T, including the division of Average; one lane at a time. A
// factor of 1 does not multiply, since an int64 may not fit a double.
template <class T>
struct IntegerScale {
  static constexpr bool kIsVectorised = false;
  explicit IntegerScale(const Block& block)
      : prescale_(block.prescale), postscale_(block.postscale), divisor_(block.divisor) {
    if (postscale_ == 1.0) return;
    postscale_ /= divisor_;
    divisor_ = 1;
  }

  template <class V>
  [[gnu::always_inline]] V before(V lane) const {
    if (prescale_ != 1.0) lane[0] = scaled_integer(static_cast<T>(lane[0]), prescale_);
    return lane;
  }
  template <class V>
  [[gnu::always_inline]] V after(V lane) const {
    const T value = static_cast<T>(lane[0]);
    if (divisor_ != 1) lane[0] = static_cast<T>(value / divisor_);
    if (postscale_ != 1.0) lane[0] = scaled_integer(value, postscale_);
    return lane;
  }

 private:
  double prescale_;
  double postscale_;
  int divisor_;
};

}  // namespace
}  // namespace hvd
