// The dot products of Adasum. Its weighted sum is reduce() with ReduceOp::kAdasum.
//
// The Adasum of n vectors is a linear combination of them. Its weights follow from all their dot
// products (collective/adasum_weights.h). Each rank adds up the dot products over its share.
#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.h"

namespace hvd {

// The dot products of n vectors with each other are a symmetric matrix, the Gram matrix. Only its
// upper triangle is kept, row by row: (0,0), (0,1) ... (0,n-1), (1,1) ...
constexpr std::size_t gram_entries(std::size_t vectors) { return vectors * (vectors + 1) / 2; }

// gram[(i,j)] += sum over k of sources[i][k] * sources[j][k], k in [0, count). Products and sums
// are in double; their order depends on `count` and the number of sources alone, so all instruction
// sets give the same bits. REQUIRES: reduce() supports Adasum for `dtype`; at least one source.
void accumulate_gram(Dtype dtype, std::span<const std::byte* const> sources, std::size_t count,
                     double* gram);

}  // namespace hvd
