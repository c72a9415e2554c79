// The kernels of low-bit formats (kernels/low_bit.h), block by block.
//
// Included by the reduce_<isa>.cc files only; see vectors.h for why all of it is unnamed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "kernels/low_bit_codes.h"
#include "kernels/low_bit_scales.h"
#include "kernels/sweep.h"
#include "kernels/vectors.h"

namespace hvd {
namespace {

template <int kLanes>
[[gnu::always_inline]] inline std::int32_t largest_lane(Vector<std::int32_t, kLanes> vector) {
  if constexpr (kLanes == 1) {
    return vector[0];
  } else {
    Vector<std::int32_t, kLanes / 2> halves[2];
    __builtin_memcpy(halves, &vector, sizeof vector);
    return largest_lane<kLanes / 2>(halves[0] > halves[1] ? halves[0] : halves[1]);
  }
}

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

  // The bits of the largest magnitude up to `limit` of each group of elements: of all, or of those
  // that are finite.
  template <int kGroups>
  [[gnu::always_inline]] void find_largest(std::int32_t limit,
                                           std::int32_t (&largest)[kGroups]) const {
    constexpr int kParts = kVectors / kGroups;
    for (int group = 0; group < kGroups; ++group) {
      Ints most{};
      for (int i = group * kParts; i < (group + 1) * kParts; ++i) {
        const Ints bits = as<Ints>(parts[i]) & 0x7fffffff;
        const Ints magnitude = bits & (bits <= limit);
        most = magnitude > most ? magnitude : most;
      }
      largest[group] = largest_lane<kLanes>(most);
    }
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

// One coded block: the word of its scales, then its codes.
template <class Isa, class Code, class Scales>
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
    std::int32_t largest[Scales::kGroups];
    lanes.find_largest(0x7fffffff, largest);
    bool is_plain = true;
    for (const std::int32_t each : largest) is_plain &= each < Scales::kPlainBelow;
    if (is_plain) {
      encode_scaled<true>(rounder, lanes, Scales::template word_of<true>(largest), coded);
    } else {
      lanes.find_largest(kInfinityBits - 1, largest);
      encode_scaled<false>(rounder, lanes, Scales::template word_of<false>(largest), coded);
    }
  }

  // Adds to what is there, or replaces it.
  template <bool kIsAdded>
  [[gnu::always_inline]] static void decode(const std::byte* coded, Lanes& lanes) {
    std::uint32_t scales;
    __builtin_memcpy(&scales, coded, sizeof scales);
    const std::byte* const codes = coded + sizeof scales;
    if (is_plain(scales, codes)) {
      decode_scaled<true, kIsAdded>(codes, scales, lanes);
    } else {
      decode_scaled<false, kIsAdded>(codes, scales, lanes);
    }
  }

 private:
  // Of the elements that have code k of each word.
  static constexpr int group_of(int k) { return k * Scales::kGroups / kPerWord; }

  template <bool kIsPlain, class Rounder>
  [[gnu::always_inline]] static void encode_scaled(const Rounder& rounder, Lanes& lanes,
                                                   std::uint32_t scales, std::byte* coded) {
    __builtin_memcpy(coded, &scales, sizeof scales);
    float scale[Scales::kGroups];
    float inverse[Scales::kGroups];
    Scales::unpack(scales, scale);
    for (int group = 0; group < Scales::kGroups; ++group) inverse[group] = 1.0F / scale[group];
    for (int word = 0; word < kStep; ++word) {
      Bits words{};
      for (int k = 0; k < kPerWord; ++k) {
        const int part = word + k * kStep;
        const int group = group_of(k);
        words |=
            encode_part<kIsPlain>(rounder, lanes.parts[part], part, scale[group], inverse[group])
            << (Code::kBits * k);
      }
      store_vector(coded + sizeof scales + word * sizeof(Bits), words);
    }
  }

  // `number`: of the part.
  template <bool kIsPlain, class Rounder>
  [[gnu::always_inline]] static Bits encode_part(const Rounder& rounder, Floats& part, int number,
                                                 float scale, float inverse) {
    constexpr float kLargest = kIsPlain ? Code::kLargest : Code::kLargestBesideMarks;
    const Floats lanes = part;
    const Floats limited = kIsPlain ? lanes : Scales::limited(lanes);
    Coded<kLanes> coded = rounder.template encode<Code>(limited * inverse, number, kLargest);
    part = lanes - coded.values * scale;
    if constexpr (!kIsPlain) {
      const Ints bits = as<Ints>(lanes);
      const auto is_finite = (bits & 0x7fffffff) < kInfinityBits;
      const Bits infinity = bits < 0 ? Bits{} + Code::kMinusInfinity : Bits{} + Code::kInfinity;
      const Bits special = lanes == lanes ? infinity : Bits{} + Code::kNan;
      coded.codes = is_finite ? coded.codes : special;
      part = is_finite ? part : Floats{};
    }
    return coded.codes;
  }

  [[gnu::always_inline]] static bool is_plain(std::uint32_t scales, const std::byte* codes) {
    if constexpr (Scales::kHasMark) {
      return (scales & Scales::kMark) == 0;
    } else {
      return is_finite(codes);
    }
  }

  // REQUIRES: codes of 8 bits, of which those from kInfinity on, without sign, stand for no number.
  [[gnu::always_inline]] static bool is_finite(const std::byte* codes) {
    constexpr std::uint32_t kEach = 0x01010101U;
    Bits carried{};  // into the signs
    for (int word = 0; word < kStep; ++word) {
      const Bits words = load_vector<Bits>(codes + word * sizeof(Bits));
      carried |= (words & (0x7fU * kEach)) + (0x80U - Code::kInfinity) * kEach;
    }
    std::uint32_t lanes[kLanes];
    __builtin_memcpy(lanes, &carried, sizeof lanes);
    std::uint32_t all = 0;
    for (const std::uint32_t lane : lanes) all |= lane;
    return (all & (0x80U * kEach)) == 0;
  }

  template <bool kIsPlain, bool kIsAdded>
  [[gnu::always_inline]] static void decode_scaled(const std::byte* codes, std::uint32_t scales,
                                                   Lanes& lanes) {
    float scale[Scales::kGroups];
    Scales::unpack(scales, scale);
    for (int word = 0; word < kStep; ++word) {
      const Bits words = load_vector<Bits>(codes + word * sizeof(Bits));
      for (int k = 0; k < kPerWord; ++k) {
        const Bits of_part = (words >> (Code::kBits * k)) & Code::kMask;
        Floats values = Code::template decode<kLanes>(of_part) * scale[group_of(k)];
        if constexpr (!kIsPlain) values = with_special(of_part, values);
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
template <class Isa, class Code, class Scales>
struct LowBits {
  using Lanes = BlockLanes<Isa>;
  using Coder = CodedBlock<Isa, Code, Scales>;
  using Plain = Direct<float>;
  static constexpr std::size_t kBlockBytes = kLowBitBlock / 8 * Code::kBits + sizeof(std::uint32_t);

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

template <class Format, class Codec>
constexpr void fill_low_bit_dtype(LowBitKernels& kernels, Dtype dtype) {
  kernels.encode[index_of(dtype)] = Format::template encode<Codec>;
  kernels.decode[index_of(dtype)] = Format::template decode<Codec>;
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

template <class Isa, LinkFormat kFormat, class Code, class Scales = OneScale<Code>>
constexpr void fill_low_bits(KernelTable& table) {
  using Format = LowBits<Isa, Code, Scales>;
  static_assert(Format::kBlockBytes == low_bit_block_bytes(kFormat));
  LowBitKernels& kernels = table.low_bits[static_cast<int>(kFormat)];
  fill_low_bit_dtype<Format, Direct<float>>(kernels, Dtype::kFloat32);
  fill_low_bit_dtype<Format, Float16<Isa>>(kernels, Dtype::kFloat16);
  fill_low_bit_dtype<Format, Bfloat16>(kernels, Dtype::kBfloat16);
  kernels.add_coded = Format::add_coded;
}

}  // namespace
}  // namespace hvd
