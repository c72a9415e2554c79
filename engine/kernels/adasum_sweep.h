// The kernels of Adasum: dot products of all sources with each other, and their weighted sum.
//
// Included by the reduce_<isa>.cc files only; see vectors.h for why all of it is unnamed.
#pragma once

#include <cstddef>

#include "kernels/kernel_table.h"
#include "kernels/sweep.h"
#include "kernels/vectors.h"

namespace hvd {
namespace {

// One or more sources, each multiplied by its weight in the type that accumulates.
struct WeightedSources {
  explicit WeightedSources(const Block& block)
      : sources(block.sources), weights(block.weights), count(block.source_count) {}

  template <class Op, class Scale, class G>
  [[gnu::always_inline]] void reduce_into(G& total, std::size_t offset,
                                          const Scale& /*scale*/) const {
    using Lane = typename G::Lane;
    constexpr std::size_t kParts = sizeof(total.parts) / sizeof(total.parts[0]);
    const Lane first = static_cast<Lane>(weights[0]);
    total.load(sources[0] + offset);
    for (std::size_t i = 0; i < kParts; ++i) total.parts[i] *= first;
    for (std::size_t source = 1; source < count; ++source) {
      const Lane weight = static_cast<Lane>(weights[source]);
      G next;
      next.load(sources[source] + offset);
      for (std::size_t i = 0; i < kParts; ++i) {
        total.parts[i] = Op::apply(total.parts[i], next.parts[i] * weight);
      }
    }
  }

  const std::byte* const* sources;
  const double* weights;
  std::size_t count;
};

template <class Isa, class Codec>
struct WeightedSum {
  static void run(const Block& block) {
    Sweep<Isa, Codec, Add, Unscaled>::cover(block, WeightedSources(block), Unscaled(block));
  }
};

// Works in chunks: all sources are widened to rows of doubles in the cache, then multiplied with
// each other.
template <class Isa, class Codec>
struct Gram {
  static constexpr int kFullLanes =
      Isa::kVectorBytes / static_cast<int>(sizeof(typename Codec::Lane));
  static constexpr int kDoubles = Isa::kVectorBytes / static_cast<int>(sizeof(double));
  using Doubles = Vector<double, kDoubles>;

  static void run(const GramBlock& block) {
    for (std::size_t done = 0; done < block.count; done += block.chunk) {
      const std::size_t left = block.count - done;
      const std::size_t length = left < block.chunk ? left : block.chunk;
      for (std::size_t source = 0; source < block.source_count; ++source) {
        const std::byte* from = block.sources[source] + done * sizeof(typename Codec::Stored);
        widen_row(from, length, block.scratch + source * block.chunk);
      }
      multiply_rows(block, length);
    }
  }

 private:
  // Fills up with zeros to whole rounds of kGramLanes.
  static void widen_row(const std::byte* from, std::size_t length, double* row) {
    std::size_t done = widen<kFullLanes>(from, length, row, 0);
    done = widen<1>(from, length, row, done);
    for (; done % kGramLanes != 0; ++done) row[done] = 0.0;
  }

  template <int kLanes>
  [[gnu::always_inline]] static std::size_t widen(const std::byte* from, std::size_t length,
                                                  double* row, std::size_t done) {
    using G = Group<Codec, 1, kLanes>;
    for (; length - done >= kLanes; done += kLanes) {
      G group;
      group.load(from + done * sizeof(typename Codec::Stored));
      const auto wide = __builtin_convertvector(group.parts[0], Vector<double, kLanes>);
      __builtin_memcpy(row + done, &wide, sizeof(wide));
    }
    return done;
  }

  static void multiply_rows(const GramBlock& block, std::size_t length) {
    double* entry = block.gram;
    for (std::size_t i = 0; i < block.source_count; ++i) {
      for (std::size_t j = i; j < block.source_count; ++j) {
        const double* left = block.scratch + i * block.chunk;
        const double* right = block.scratch + j * block.chunk;
        *entry++ += dot(left, right, length);
      }
    }
  }

  // kGramLanes partial sums, for every length of a vector. They are added up in order at the end.
  static double dot(const double* left, const double* right, std::size_t length) {
    constexpr int kVectors = static_cast<int>(kGramLanes) / kDoubles;
    Doubles sums[kVectors] = {};
    for (std::size_t at = 0; at < length; at += kGramLanes) {
      for (int i = 0; i < kVectors; ++i) {
        Doubles a;
        Doubles b;
        __builtin_memcpy(&a, left + at + i * kDoubles, sizeof(a));
        __builtin_memcpy(&b, right + at + i * kDoubles, sizeof(b));
        sums[i] += a * b;
      }
    }
    double lanes[kGramLanes];
    __builtin_memcpy(lanes, sums, sizeof(lanes));
    double total = 0.0;
    for (const double lane : lanes) total += lane;
    return total;
  }
};

template <class Isa, class Codec>
constexpr void fill_adasum(KernelTable& table, Dtype dtype) {
  table.weighted_sums[index_of(dtype)] = WeightedSum<Isa, Codec>::run;
  table.grams[index_of(dtype)] = Gram<Isa, Codec>::run;
}

}  // namespace
}  // namespace hvd
