// Inside the kernels folder: one table of kernels per instruction set, and the block they work on.
//
// reduce.cc chooses a table once, when the library is loaded. Unit tests reach the other tables
// through kernel_table() to show that all instruction sets give the same bits. The files that are
// compiled with special flags include this header and must emit nothing that the linker could share
// with the rest of the program: declarations and plain structs only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/link_format.h"
#include "core/reduce_op.h"
#include "kernels/low_bit.h"

namespace hvd {

struct ReduceSpec;

// One call of reduce(), flattened.
struct Block {
  const std::byte* const* sources;
  std::size_t source_count;
  std::byte* dst;
  std::byte* copy;  // null: no second destination
  std::size_t count;
  double prescale;
  double postscale;
  int divisor;
  const double* weights;  // Adasum only
};

using Kernel = void (*)(const Block& block);

// One call of accumulate_gram(), flattened.
struct GramBlock {
  const std::byte* const* sources;
  std::size_t source_count;
  std::size_t count;
  double* gram;
  double* scratch;    // a row of `chunk` doubles per source
  std::size_t chunk;  // elements that are multiplied at a time; a multiple of kGramLanes
};

using GramKernel = void (*)(const GramBlock& block);

inline constexpr std::size_t kGramLanes = 32;  // partial sums of a dot product

// One call of encode(), add_coded(), decode() or add_errors(), flattened.
struct LowBitCall {
  const std::byte* const* sources;  // one; add_coded: any number; add_errors: tensor and errors
  std::size_t source_count;
  std::byte* to;
  std::size_t count;
  Coding coding;  // decode: the factor is of the results
};

using LowBitKernel = void (*)(const LowBitCall& call);

// By dtype; null where unsupported.
struct LowBitKernels {
  LowBitKernel encode[kDtypeCount];
  LowBitKernel decode[kDtypeCount];
  LowBitKernel add_coded;
};

struct KernelTable {
  const char* isa;
  // The first index is 1 when prescale or postscale differ from 1. Null where unsupported. Null for
  // Adasum, too: it does not combine single elements.
  Kernel kernels[2][kDtypeCount][kReduceOpCount];
  Kernel weighted_sums[kDtypeCount];
  GramKernel grams[kDtypeCount];
  LowBitKernels low_bits[kLinkFormatCount];  // by format; empty where it is none
  LowBitKernel add_errors[kDtypeCount];      // null where unsupported
};

enum class Isa : std::uint8_t { kPortable, kAvx2, kAvx512 };

// Null when this build or this processor lacks the instruction set. The portable table is compiled
// for the baseline of the architecture and always exists (on arm64 it is called "neon").
const KernelTable* kernel_table(Isa isa);

const KernelTable& best_kernel_table();

// accumulate_gram() with a chosen table.
void accumulate_gram_with(const KernelTable& table, Dtype dtype,
                          std::span<const std::byte* const> sources, std::size_t count,
                          double* gram);

// encode(), add_coded(), decode() and add_errors() with a chosen table.
void encode_with(const KernelTable& table, LinkFormat format, Dtype dtype, const std::byte* from,
                 std::size_t count, std::byte* coded, const Coding& coding);
void add_coded_with(const KernelTable& table, LinkFormat format,
                    std::span<const std::byte* const> sources, std::size_t count, std::byte* coded,
                    const Coding& coding);
void decode_with(const KernelTable& table, LinkFormat format, Dtype dtype, const std::byte* coded,
                 std::size_t count, std::byte* to, float factor);
void add_errors_with(const KernelTable& table, Dtype dtype, const std::byte* from,
                     const float* errors, std::size_t count, std::byte* to);

// reduce() with a chosen table.
void reduce_with(const KernelTable& table, const ReduceSpec& spec,
                 std::span<const std::byte* const> sources, std::byte* dst, std::byte* copy,
                 std::size_t count);

extern const KernelTable kPortableKernels;
extern const KernelTable kAvx2Kernels;    // only linked on x86-64
extern const KernelTable kAvx512Kernels;  // only linked on x86-64

}  // namespace hvd
