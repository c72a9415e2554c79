// Elementwise reduction of one block over all ranks.
//
// Called by the allreduce algorithms with one source per rank, in rank order, on any thread. The
// sum of an element depends on the sources' order alone: ((s0 + s1) + s2) + ..., never on the
// instruction set, on the element's place in the block or on the block's size. So results are
// bitwise repeatable (except the payload of a NaN). float16 and bfloat16 accumulate in float32 and
// round once, to nearest even. Sums and products of integers wrap around. Min and Max keep the
// first NaN in source order, and the first of two equal zeros. For bool, Sum and Max are "or",
// Product and Min are "and"; any non-zero byte is true. Adasum arrives here with its weights
// (kernels/adasum.h) and is the weighted sum of the sources.
#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.h"
#include "core/reduce_op.h"

namespace hvd {

// What happens around the reduction: every source is multiplied by `prescale` before it, the result
// by `postscale` after it, and for Average divided by `divisor` (the number of ranks; other ops
// ignore it). Floats are multiplied by postscale / divisor, a single factor, in the type that
// accumulates. Integers are multiplied as doubles, cut off toward zero and kept within their range.
// A factor of 1 does not change them, and Average with postscale 1 is exact integer division.
struct ReduceSpec {
  Dtype dtype;
  ReduceOp op;
  double prescale = 1.0;
  double postscale = 1.0;
  int divisor = 1;
  const double* weights = nullptr;  // Adasum only: one per source, prescale and postscale included
};

// dst[i] = reduce over sources of source[i], for i in [0, count). `dst` may equal any one source.
// `copy`, when not null, receives the same bytes as `dst` (it must not overlap anything else).
// Pointers need no alignment. REQUIRES: at least one source; unsupported_reason(spec) is null; for
// Adasum, weights.
void reduce(const ReduceSpec& spec, std::span<const std::byte* const> sources, std::byte* dst,
            std::byte* copy, std::size_t count);

// Null when the combination is supported, else the reason in words fit for an error message
// ("bool has no average; use Sum (logical or), ...").
const char* unsupported_reason(const ReduceSpec& spec);

// The instruction set chosen at run time: "avx512", "avx2", "neon" or "portable".
const char* kernel_isa();

}  // namespace hvd
