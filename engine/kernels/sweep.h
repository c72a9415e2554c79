// The loop over a block, and the table of all its variants for one instruction set.
//
// Included by the reduce_<isa>.cc files only; see vectors.h for why all of it is unnamed. Each of
// them passes a class Isa with kVectorBytes, half_to_float and float_to_half to kernels_of().
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/arithmetic.h"
#include "kernels/kernel_table.h"
#include "kernels/vectors.h"

namespace hvd {
namespace {

// Two sources, the common case: their addresses stay in registers.
struct TwoSources {
  explicit TwoSources(const Block& block) : first(block.sources[0]), second(block.sources[1]) {}

  template <class Op, class Scale, class G>
  [[gnu::always_inline]] void reduce_into(G& total, std::size_t offset, const Scale& scale) const {
    G next;
    total.load(first + offset);
    next.load(second + offset);
    for (std::size_t i = 0; i < sizeof(total.parts) / sizeof(total.parts[0]); ++i) {
      total.parts[i] = Op::apply(scale.before(total.parts[i]), scale.before(next.parts[i]));
    }
  }

  const std::byte* first;
  const std::byte* second;
};

// One or more sources.
struct ManySources {
  explicit ManySources(const Block& block) : sources(block.sources), count(block.source_count) {}

  template <class Op, class Scale, class G>
  [[gnu::always_inline]] void reduce_into(G& total, std::size_t offset, const Scale& scale) const {
    constexpr std::size_t kParts = sizeof(total.parts) / sizeof(total.parts[0]);
    total.load(sources[0] + offset);
    for (std::size_t i = 0; i < kParts; ++i) total.parts[i] = scale.before(total.parts[i]);
    for (std::size_t source = 1; source < count; ++source) {
      G next;
      next.load(sources[source] + offset);
      for (std::size_t i = 0; i < kParts; ++i) {
        total.parts[i] = Op::apply(total.parts[i], scale.before(next.parts[i]));
      }
    }
  }

  const std::byte* const* sources;
  std::size_t count;
};

// Walks over one block with groups of falling size; the last group is a single element. All sources
// of an element are read before it is written, so dst may be one of them.
template <class Isa, class Codec, class Op, class Scale>
struct Sweep {
  static constexpr int kFullLanes =
      Isa::kVectorBytes / static_cast<int>(sizeof(typename Codec::Lane));

  static void run(const Block& block) {
    const Scale scale(block);
    if (block.source_count == 2) {
      cover(block, TwoSources(block), scale);
    } else {
      cover(block, ManySources(block), scale);
    }
  }

  template <class Sources>
  [[gnu::always_inline]] static void cover(const Block& block, const Sources& sources,
                                           const Scale& scale) {
    std::size_t done = 0;
    if constexpr (Scale::kIsVectorised) {
      done = advance<Group<Codec, 4, kFullLanes>>(block, sources, scale, done);
      done = advance<Group<Codec, 1, kFullLanes>>(block, sources, scale, done);
      if constexpr (kFullLanes > 4) {
        done = advance<Group<Codec, 1, 4>>(block, sources, scale, done);
      }
    }
    advance<Group<Codec, 1, 1>>(block, sources, scale, done);
  }

 private:
  // Reduces whole groups from element `done` on; returns the first element left over.
  template <class G, class Sources>
  [[gnu::always_inline]] static std::size_t advance(const Block& block, const Sources& sources,
                                                    const Scale& scale, std::size_t done) {
    std::byte* const dst = block.dst;
    std::byte* const copy = block.copy;
    const std::size_t count = block.count;
    for (; count - done >= G::kCount; done += G::kCount) {
      const std::size_t offset = done * sizeof(typename G::Stored);
      G total;
      sources.template reduce_into<Op>(total, offset, scale);
      for (auto& part : total.parts) part = scale.after(part);
      total.store(dst + offset, copy == nullptr ? nullptr : copy + offset);
    }
    return done;
  }
};

constexpr int index_of(Dtype dtype) { return static_cast<int>(dtype); }
constexpr int index_of(ReduceOp op) { return static_cast<int>(op); }

// The rows of one dtype in both halves of the table.
struct Rows {
  Kernel* plain;
  Kernel* scaled;
};

constexpr Rows rows_of(KernelTable& table, Dtype dtype) {
  return {table.kernels[0][index_of(dtype)], table.kernels[1][index_of(dtype)]};
}

// The ops of one row. `Ordered`: the codec of Min and Max.
template <class Isa, class Codec, class Ordered, class Scale, class MeanScale>
constexpr void fill_row(Kernel* row) {
  row[index_of(ReduceOp::kAverage)] = Sweep<Isa, Codec, Add, MeanScale>::run;
  row[index_of(ReduceOp::kSum)] = Sweep<Isa, Codec, Add, Scale>::run;
  row[index_of(ReduceOp::kMin)] = Sweep<Isa, Ordered, Smaller, Scale>::run;
  row[index_of(ReduceOp::kMax)] = Sweep<Isa, Ordered, Larger, Scale>::run;
  row[index_of(ReduceOp::kProduct)] = Sweep<Isa, Codec, Multiply, Scale>::run;
}

template <class Isa, class Codec>
constexpr void fill_float(Rows rows) {
  using Lane = typename Codec::Lane;
  fill_row<Isa, Codec, Codec, Unscaled, FloatMean<Lane>>(rows.plain);
  fill_row<Isa, Codec, Codec, FloatScale<Lane>, FloatScale<Lane>>(rows.scaled);
}

// T compares and scales, its unsigned counterpart U adds and multiplies.
template <class Isa, class T, class U>
constexpr void fill_integer(Rows rows) {
  fill_row<Isa, Direct<U>, Direct<T>, Unscaled, IntegerScale<T>>(rows.plain);
  fill_row<Isa, Direct<U>, Direct<T>, IntegerScale<T>, IntegerScale<T>>(rows.scaled);
}

template <class Isa>
constexpr void fill_bool(Rows rows) {
  rows.plain[index_of(ReduceOp::kSum)] = Sweep<Isa, Truth, Or, Unscaled>::run;
  rows.plain[index_of(ReduceOp::kMin)] = Sweep<Isa, Truth, And, Unscaled>::run;
  rows.plain[index_of(ReduceOp::kMax)] = Sweep<Isa, Truth, Or, Unscaled>::run;
  rows.plain[index_of(ReduceOp::kProduct)] = Sweep<Isa, Truth, And, Unscaled>::run;
}

template <class Isa>
constexpr KernelTable kernels_of(const char* isa) {
  KernelTable table{};
  table.isa = isa;
  fill_integer<Isa, std::uint8_t, std::uint8_t>(rows_of(table, Dtype::kUint8));
  fill_integer<Isa, std::int8_t, std::uint8_t>(rows_of(table, Dtype::kInt8));
  fill_integer<Isa, std::int16_t, std::uint16_t>(rows_of(table, Dtype::kInt16));
  fill_integer<Isa, std::uint16_t, std::uint16_t>(rows_of(table, Dtype::kUint16));
  fill_integer<Isa, std::int32_t, std::uint32_t>(rows_of(table, Dtype::kInt32));
  fill_integer<Isa, std::int64_t, std::uint64_t>(rows_of(table, Dtype::kInt64));
  fill_float<Isa, Float16<Isa>>(rows_of(table, Dtype::kFloat16));
  fill_float<Isa, Direct<float>>(rows_of(table, Dtype::kFloat32));
  fill_float<Isa, Direct<double>>(rows_of(table, Dtype::kFloat64));
  fill_float<Isa, Bfloat16>(rows_of(table, Dtype::kBfloat16));
  fill_bool<Isa>(rows_of(table, Dtype::kBool));
  return table;
}

}  // namespace
}  // namespace hvd
