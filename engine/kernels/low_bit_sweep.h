// The kernels of low-bit formats (kernels/low_bit.h), block by block.
//
// Included by the reduce_<isa>.cc files only; see vectors.h for why all of it is unnamed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/low_bit_codes.h"
#include "kernels/sweep.h"
#include "kernels/vectors.h"

namespace hvd {
namespace {

// The lowest bit of a scale marks a block with values that are not finite. Scales do not use their
// lowest byte.
inline constexpr std::uint32_t kScaleBits = 0xffffff00U;
inline constexpr std::uint32_t kNotFiniteMark = 1;
inline constexpr std::int32_t kInfinityBits = 0x7f800000;

// The elements of a block as floats.
template <class Isa>
struct BlockLanes {
  static constexpr int kLanes = Isa::kVectorBytes / static_cast<int>(sizeof(float));
  static constexpr int kVectors = static_cast<int>(kLowBitBlock) / kLanes;
  using Floats = Vector<float, kLanes>;
  using Ints = Vector<std::int32_t, kLanes>;

  template <class Codec>
  [[gnu::always_inline]] void load(const std::byte* from, std::size_t count) {
    constexpr std::size_t kBytes = sizeof(typename Codec::Stored);
    if (count == kLowBitBlock) {
      for (int i = 0; i < kVectors; ++i) {
        const auto stored =
            load_vector<Vector<typename Codec::Stored, kLanes>>(from + i * kLanes * kBytes);
        parts[i] = Codec::template widen<kLanes>(stored);
      }
      return;
    }
    float filled[kLowBitBlock] = {};
    for (std::size_t i = 0; i < count; ++i) {
      const auto stored = load_vector<Vector<typename Codec::Stored, 1>>(from + i * kBytes);
      filled[i] = Codec::template widen<1>(stored)[0];
    }
    __builtin_memcpy(parts, filled, sizeof parts);
  }

  template <class Codec>
  [[gnu::always_inline]] void store(std::byte* to, std::size_t count) const {
    constexpr std::size_t kBytes = sizeof(typename Codec::Stored);
    if (count == kLowBitBlock) {
      for (int i = 0; i < kVectors; ++i) {
        store_vector(to + i * kLanes * kBytes, Codec::template narrow<kLanes>(parts[i]));
      }
      return;
    }
    float filled[kLowBitBlock];
    __builtin_memcpy(filled, parts, sizeof filled);
    for (std::size_t i = 0; i < count; ++i) {
      store_vector(to + i * kBytes, Codec::template narrow<1>(Vector<float, 1>{filled[i]}));
    }
  }

  // The bits of the largest magnitude up to `limit`: all, or the largest finite one.
  [[gnu::always_inline]] std::int32_t largest_up_to(std::int32_t limit) const {
    Ints most{};
    for (int i = 0; i < kVectors; ++i) {
      const Ints bits = as<Ints>(parts[i]) & 0x7fffffff;
      const Ints magnitude = bits & (bits <= limit);
      most = magnitude > most ? magnitude : most;
    }
    std::int32_t lanes[kLanes];
    __builtin_memcpy(lanes, &most, sizeof lanes);
    std::int32_t largest = 0;
    for (const std::int32_t lane : lanes) largest = lane > largest ? lane : largest;
    return largest;
  }

  Floats parts[kVectors];
};

// How the elements of a block are rounded: to nearest even.
template <class Isa>
struct Nearest {
  static constexpr int kLanes = BlockLanes<Isa>::kLanes;

  Nearest(const Coding& /*coding*/, std::size_t /*at*/) {}

  template <class Code>
  [[gnu::always_inline]] Coded<kLanes> encode(Vector<float, kLanes> lanes, int /*part*/,
                                              float /*largest*/) const {
    return Code::template encode<kLanes>(lanes);
  }
};

// By chance. The random bits are a hash of the seed and of the element's number, with the steps of
// MurmurHash3's finaliser (Appleby 2011).
template <class Isa>
struct ByChance {
  static constexpr int kLanes = BlockLanes<Isa>::kLanes;
  using Bits = Vector<std::uint32_t, kLanes>;

  // `at`: of the block.
  ByChance(const Coding& coding, std::size_t at)
      : low(static_cast<std::uint32_t>(coding.rounding.seed)),
        high(static_cast<std::uint32_t>(coding.rounding.seed >> 32)),
        first(static_cast<std::uint32_t>(coding.first + at)) {}

  template <class Code>
  [[gnu::always_inline]] Coded<kLanes> encode(Vector<float, kLanes> lanes, int part,
                                              float largest) const {
    return Code::template encode_by_chance<kLanes>(lanes, random_bits(part), largest);
  }

  [[gnu::always_inline]] Bits random_bits(int part) const {
    Bits bits{};
    for (int lane = 0; lane < kLanes; ++lane) bits[lane] = static_cast<std::uint32_t>(lane);
    bits += first + static_cast<std::uint32_t>(part * kLanes) + low;
    bits ^= bits >> 16;
    bits *= 0x85ebca6bU;
    bits ^= bits >> 13;
    bits += high;
    bits *= 0xc2b2ae35U;
    return bits ^ (bits >> 16);
  }

  std::uint32_t low;
  std::uint32_t high;
  std::uint32_t first;
};

// One coded block.
template <class Isa, class Code>
struct CodedBlock {
  using Lanes = BlockLanes<Isa>;
  static constexpr int kLanes = Lanes::kLanes;
  static constexpr int kPerWord = 32 / Code::kBits;
  static constexpr int kWords = static_cast<int>(kLowBitBlock) / kPerWord;
  static constexpr int kStep = kWords / kLanes;  // vectors between elements of one word
  using Floats = Vector<float, kLanes>;
  using Bits = Vector<std::uint32_t, kLanes>;
  using Ints = Vector<std::int32_t, kLanes>;

  // `lanes` becomes the errors.
  template <class Rounder>
  [[gnu::always_inline]] static void encode(const Rounder& rounder, Lanes& lanes,
                                            std::byte* coded) {
    const std::int32_t largest = lanes.largest_up_to(0x7fffffff);
    if (largest < kInfinityBits) {
      encode_scaled<false>(rounder, lanes, scale_of(largest, Code::kLargest), coded);
    } else {
      const float scale =
          scale_of(lanes.largest_up_to(kInfinityBits - 1), Code::kLargestBesideMarks);
      encode_scaled<true>(rounder, lanes, scale, coded);
    }
  }

  // Adds to what is there, or replaces it.
  template <bool kIsAdded>
  [[gnu::always_inline]] static void decode(const std::byte* coded, Lanes& lanes) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, coded, sizeof bits);
    const float scale = __builtin_bit_cast(float, bits& kScaleBits);
    if ((bits & kNotFiniteMark) == 0) {
      decode_scaled<false, kIsAdded>(coded + sizeof bits, scale, lanes);
    } else {
      decode_scaled<true, kIsAdded>(coded + sizeof bits, scale, lanes);
    }
  }

 private:
  [[gnu::always_inline]] static float scale_of(std::int32_t largest, float largest_code) {
    const float scale = __builtin_bit_cast(float, largest) / largest_code;
    if (!(scale > Code::kLeastScale)) return Code::kLeastScale;
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, scale) & kScaleBits);
  }

  template <bool kHasMark, class Rounder>
  [[gnu::always_inline]] static void encode_scaled(const Rounder& rounder, Lanes& lanes,
                                                   float scale, std::byte* coded) {
    const std::uint32_t bits =
        __builtin_bit_cast(std::uint32_t, scale) | (kHasMark ? kNotFiniteMark : 0U);
    __builtin_memcpy(coded, &bits, sizeof bits);
    const float inverse = 1.0F / scale;
    for (int word = 0; word < kStep; ++word) {
      Bits words{};
      for (int k = 0; k < kPerWord; ++k) {
        const int part = word + k * kStep;
        words |= encode_part<kHasMark>(rounder, lanes.parts[part], part, scale, inverse)
                 << (Code::kBits * k);
      }
      store_vector(coded + sizeof bits + word * sizeof(Bits), words);
    }
  }

  // `number`: of the part.
  template <bool kHasMark, class Rounder>
  [[gnu::always_inline]] static Bits encode_part(const Rounder& rounder, Floats& part, int number,
                                                 float scale, float inverse) {
    constexpr float kLargest = kHasMark ? Code::kLargestBesideMarks : Code::kLargest;
    const Floats lanes = part;
    Coded<kLanes> coded = rounder.template encode<Code>(lanes * inverse, number, kLargest);
    part = lanes - coded.values * scale;
    if constexpr (kHasMark) {
      const Ints bits = as<Ints>(lanes);
      const auto is_finite = (bits & 0x7fffffff) < kInfinityBits;
      const Bits infinity = bits < 0 ? Bits{} + Code::kMinusInfinity : Bits{} + Code::kInfinity;
      const Bits special = lanes == lanes ? infinity : Bits{} + Code::kNan;
      coded.codes = is_finite ? coded.codes : special;
      part = is_finite ? part : Floats{};
    }
    return coded.codes;
  }

  template <bool kHasMark, bool kIsAdded>
  [[gnu::always_inline]] static void decode_scaled(const std::byte* codes, float scale,
                                                   Lanes& lanes) {
    for (int word = 0; word < kStep; ++word) {
      const Bits words = load_vector<Bits>(codes + word * sizeof(Bits));
      for (int k = 0; k < kPerWord; ++k) {
        const Bits of_part = (words >> (Code::kBits * k)) & Code::kMask;
        Floats values = Code::template decode<kLanes>(of_part) * scale;
        if constexpr (kHasMark) values = with_special(of_part, values);
        Floats& part = lanes.parts[word + k * kStep];
        part = kIsAdded ? part + values : values;
      }
    }
  }

  [[gnu::always_inline]] static Floats with_special(Bits of_part, Floats values) {
    values = of_part == Code::kInfinity ? Floats{} + __builtin_inff() : values;
    values = of_part == Code::kMinusInfinity ? Floats{} - __builtin_inff() : values;
    return of_part == Code::kNan ? Floats{} + __builtin_nanf("") : values;
  }
};

// The three kernels.
template <class Isa, class Code>
struct LowBits {
  using Lanes = BlockLanes<Isa>;
  using Coder = CodedBlock<Isa, Code>;
  using Plain = Direct<float>;
  static constexpr std::size_t kBlockBytes = kLowBitBlock / 8 * Code::kBits + sizeof(float);

  template <class Codec>
  static void encode(const LowBitCall& call) {
    if (call.coding.rounding.is_stochastic) {
      encode_rounded<Codec, ByChance<Isa>>(call);
    } else {
      encode_rounded<Codec, Nearest<Isa>>(call);
    }
  }

  static void add_coded(const LowBitCall& call) {
    if (call.coding.rounding.is_stochastic) {
      add_rounded<ByChance<Isa>>(call);
    } else {
      add_rounded<Nearest<Isa>>(call);
    }
  }

  template <class Codec>
  static void decode(const LowBitCall& call) {
    for_each_block(call, [&](std::size_t at, std::size_t count, std::byte* /*errors*/) {
      Lanes lanes;
      Coder::template decode<false>(call.sources[0] + coded_at(at), lanes);
      for (auto& part : lanes.parts) part *= call.coding.factor;
      lanes.template store<Codec>(call.to + at * sizeof(typename Codec::Stored), count);
    });
  }

 private:
  template <class Codec, class Rounder>
  [[gnu::always_inline]] static void encode_rounded(const LowBitCall& call) {
    for_each_block(call, [&](std::size_t at, std::size_t count, std::byte* errors) {
      Lanes lanes;
      lanes.template load<Codec>(call.sources[0] + at * sizeof(typename Codec::Stored), count);
      Coder::encode(Rounder(call.coding, at), lanes, call.to + coded_at(at));
      if (errors == nullptr) return;
      for (auto& part : lanes.parts) part *= call.coding.factor;
      lanes.template store<Plain>(errors, count);
    });
  }

  template <class Rounder>
  [[gnu::always_inline]] static void add_rounded(const LowBitCall& call) {
    for_each_block(call, [&](std::size_t at, std::size_t count, std::byte* errors) {
      Lanes lanes;
      Coder::template decode<false>(call.sources[0] + coded_at(at), lanes);
      for (std::size_t source = 1; source < call.source_count; ++source) {
        Coder::template decode<true>(call.sources[source] + coded_at(at), lanes);
      }
      Coder::encode(Rounder(call.coding, at), lanes, call.to + coded_at(at));
      if (errors == nullptr) return;
      Lanes before;
      before.template load<Plain>(errors, count);
      for (int i = 0; i < Lanes::kVectors; ++i) {
        before.parts[i] += lanes.parts[i] * call.coding.factor;
      }
      before.template store<Plain>(errors, count);
    });
  }

  [[gnu::always_inline]] static std::size_t coded_at(std::size_t element) {
    return element / kLowBitBlock * kBlockBytes;
  }

  // Calls use(first element, elements, where their errors go).
  template <class Use>
  [[gnu::always_inline]] static void for_each_block(const LowBitCall& call, Use use) {
    auto* const errors = reinterpret_cast<std::byte*>(call.coding.errors);
    for (std::size_t at = 0; at < call.count; at += kLowBitBlock) {
      const std::size_t left = call.count - at;
      use(at, left < kLowBitBlock ? left : kLowBitBlock,
          errors == nullptr ? nullptr : errors + at * sizeof(float));
    }
  }
};

template <class Isa, class Code, class Codec>
constexpr void fill_low_bit_dtype(LowBitKernels& kernels, Dtype dtype) {
  kernels.encode[index_of(dtype)] = LowBits<Isa, Code>::template encode<Codec>;
  kernels.decode[index_of(dtype)] = LowBits<Isa, Code>::template decode<Codec>;
}

// Adds errors in float32 to elements of any dtype that has low bits.
template <class Isa, class Codec>
void add_errors_to(const LowBitCall& call) {
  constexpr std::size_t kBytes = sizeof(typename Codec::Stored);
  for (std::size_t at = 0; at < call.count; at += kLowBitBlock) {
    const std::size_t left = call.count - at;
    const std::size_t count = left < kLowBitBlock ? left : kLowBitBlock;
    BlockLanes<Isa> lanes;
    BlockLanes<Isa> errors;
    lanes.template load<Codec>(call.sources[0] + at * kBytes, count);
    errors.template load<Direct<float>>(call.sources[1] + at * sizeof(float), count);
    for (int i = 0; i < BlockLanes<Isa>::kVectors; ++i) lanes.parts[i] += errors.parts[i];
    lanes.template store<Codec>(call.to + at * kBytes, count);
  }
}

template <class Isa>
constexpr void fill_errors(KernelTable& table) {
  table.add_errors[index_of(Dtype::kFloat32)] = add_errors_to<Isa, Direct<float>>;
  table.add_errors[index_of(Dtype::kFloat16)] = add_errors_to<Isa, Float16<Isa>>;
  table.add_errors[index_of(Dtype::kBfloat16)] = add_errors_to<Isa, Bfloat16>;
}

template <class Isa, class Code, LinkFormat kFormat>
constexpr void fill_low_bits(KernelTable& table) {
  static_assert(LowBits<Isa, Code>::kBlockBytes == low_bit_block_bytes(kFormat));
  LowBitKernels& kernels = table.low_bits[static_cast<int>(kFormat)];
  fill_low_bit_dtype<Isa, Code, Direct<float>>(kernels, Dtype::kFloat32);
  fill_low_bit_dtype<Isa, Code, Float16<Isa>>(kernels, Dtype::kFloat16);
  fill_low_bit_dtype<Isa, Code, Bfloat16>(kernels, Dtype::kBfloat16);
  kernels.add_coded = LowBits<Isa, Code>::add_coded;
}

}  // namespace
}  // namespace hvd
