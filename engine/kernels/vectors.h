// Vectors of lanes, and the codecs that turn stored elements into lanes to calculate with.
//
// Built on the vector extensions of GCC and Clang, so one source serves all instruction sets. A
// Vector of one lane stands for a scalar. It wraps around like the others and needs no code of its
// own. Included by the reduce_<isa>.cc files only. Everything lives in an unnamed namespace,
// because each of them compiles it with different flags and the linker must not merge the results;
// for the same reason nothing from the standard library is called here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {
namespace {

template <class T, int kLanes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kLanes * sizeof(T))));
};

template <class T, int kLanes>
using Vector = typename VectorOf<T, kLanes>::Type;

// The same bits seen as another vector type of the same size.
template <class To, class From>
[[gnu::always_inline]] inline To as(From from) {
  return __builtin_bit_cast(To, from);
}

template <class V>
[[gnu::always_inline]] inline V load_vector(const std::byte* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(V));
  return vector;
}

template <class V>
[[gnu::always_inline]] inline void store_vector(std::byte* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof(V));
}

// A codec names the stored type, the lane type, and converts vectors of one into the other.
// kIsPaired: the codec can also split one vector of 32-bit words into two vectors of lanes.

// Elements that are calculated with as they are.
template <class T>
struct Direct {
  using Stored = T;
  using Lane = T;
  static constexpr bool kIsPaired = false;

  template <int kLanes>
  [[gnu::always_inline]] static Vector<T, kLanes> widen(Vector<T, kLanes> stored) {
    return stored;
  }
  template <int kLanes>
  [[gnu::always_inline]] static Vector<T, kLanes> narrow(Vector<T, kLanes> lanes) {
    return lanes;
  }
};

// Any non-zero byte is true; lanes, and so results, are 0 or 1.
struct Truth : Direct<std::uint8_t> {
  template <int kLanes>
  [[gnu::always_inline]] static Vector<std::uint8_t, kLanes> widen(
      Vector<std::uint8_t, kLanes> stored) {
    return as<Vector<std::uint8_t, kLanes>>(stored != 0) & 1;
  }
};

// The conversion is the instruction set's: half_to_float and float_to_half, to nearest even.
template <class Isa>
struct Float16 {
  using Stored = std::uint16_t;
  using Lane = float;
  static constexpr bool kIsPaired = false;

  template <int kLanes>
  [[gnu::always_inline]] static Vector<float, kLanes> widen(Vector<std::uint16_t, kLanes> stored) {
    return Isa::template half_to_float<kLanes>(stored);
  }
  template <int kLanes>
  [[gnu::always_inline]] static Vector<std::uint16_t, kLanes> narrow(Vector<float, kLanes> lanes) {
    return Isa::template float_to_half<kLanes>(lanes);
  }
};

// bfloat16 is the upper half of a float32.
struct Bfloat16 {
  using Stored = std::uint16_t;
  using Lane = float;
  static constexpr bool kIsPaired = true;

  // The bits of a float32 whose upper half is the nearest bfloat16, ties to even. A NaN is cut off
  // instead, and stays a NaN: arithmetic sets the top bit of its payload, and a NaN that met no
  // arithmetic still has the bits of the bfloat16 that it came from.
  template <int kLanes>
  [[gnu::always_inline]] static Vector<std::uint32_t, kLanes> round(Vector<float, kLanes> lanes) {
    using Bits = Vector<std::uint32_t, kLanes>;
    const Bits bits = as<Bits>(lanes);
    const Bits nearly_half = 0x7fffU + ((bits >> 16) & 1U);
    return bits + (lanes == lanes ? nearly_half : Bits{});
  }

  template <int kLanes>
  [[gnu::always_inline]] static Vector<float, kLanes> widen(Vector<std::uint16_t, kLanes> stored) {
    using Bits = Vector<std::uint32_t, kLanes>;
    const Bits bits = __builtin_convertvector(stored, Bits);
    return as<Vector<float, kLanes>>(bits << 16);
  }
  template <int kLanes>
  [[gnu::always_inline]] static Vector<std::uint16_t, kLanes> narrow(Vector<float, kLanes> lanes) {
    using Stored = Vector<std::uint16_t, kLanes>;
    return __builtin_convertvector(round<kLanes>(lanes) >> 16, Stored);
  }

  // Elements 0, 2, 4, ... and 1, 3, 5, ... of packed words: no shuffle needed on the way in or out.
  template <int kLanes>
  [[gnu::always_inline]] static void split(Vector<std::uint32_t, kLanes> words,
                                           Vector<float, kLanes>& even,
                                           Vector<float, kLanes>& odd) {
    even = as<Vector<float, kLanes>>(words << 16);
    odd = as<Vector<float, kLanes>>(words & 0xffff0000U);
  }
  template <int kLanes>
  [[gnu::always_inline]] static Vector<std::uint32_t, kLanes> join(Vector<float, kLanes> even,
                                                                   Vector<float, kLanes> odd) {
    return (round<kLanes>(even) >> 16) | (round<kLanes>(odd) & 0xffff0000U);
  }
};

// A few vectors that are loaded, reduced and stored together, so that their latencies overlap.
template <class Codec, int kVectors, int kLanes>
struct Group {
  using Lane = typename Codec::Lane;
  using Stored = typename Codec::Stored;
  static constexpr bool kIsPaired = Codec::kIsPaired && kVectors % 2 == 0;
  static constexpr std::size_t kCount = std::size_t{kVectors} * kLanes;
  static constexpr std::size_t kStoredBytes = kLanes * sizeof(Stored);  // of one vector

  [[gnu::always_inline]] void load(const std::byte* from) {
    if constexpr (kIsPaired) {
      for (int i = 0; i < kVectors; i += 2) {
        const auto words = load_vector<Vector<std::uint32_t, kLanes>>(from + i * kStoredBytes);
        Codec::template split<kLanes>(words, parts[i], parts[i + 1]);
      }
    } else {
      for (int i = 0; i < kVectors; ++i) {
        const auto stored = load_vector<Vector<Stored, kLanes>>(from + i * kStoredBytes);
        parts[i] = Codec::template widen<kLanes>(stored);
      }
    }
  }

  // Writes to `to` and, unless it is null, to `copy`.
  [[gnu::always_inline]] void store(std::byte* to, std::byte* copy) const {
    constexpr int kStep = kIsPaired ? 2 : 1;
    for (int i = 0; i < kVectors; i += kStep) {
      const auto stored = packed(i);
      store_vector(to + i * kStoredBytes, stored);
      if (copy != nullptr) store_vector(copy + i * kStoredBytes, stored);
    }
  }

  Vector<Lane, kLanes> parts[kVectors];

 private:
  [[gnu::always_inline]] auto packed(int i) const {
    if constexpr (kIsPaired) {
      return Codec::template join<kLanes>(parts[i], parts[i + 1]);
    } else {
      return Codec::template narrow<kLanes>(parts[i]);
    }
  }
};

}  // namespace
}  // namespace hvd
