// Adasum's kernels, as text that CUDA's driver translates (see reduction_ptx.h). They do the work
// of kernels/adasum.h and collective/adasum_weights.h, for vectors that lie `stride` bytes apart,
// in rank order. All arithmetic is that of the CPU, but dot products add up their terms in another
// order.
//
// `hvd_dots_<dtype>` (u64 to, u64 count, u32 vectors, u64 from, u64 stride): each thread's part of
//     the dot products of all pairs of vectors; to[pair][thread]. `hvd_add_up` (u64 to, u64 from,
// u64 values, u64 sums): to[i] = from[i * values] + ... `hvd_weights` (u64 to, u64 grams, u32
// vectors, u64 tensors, u32 joins, u32 join[], u32 order[]):
//     the vectors' weights, for each tensor; joins and order are those of an AdasumTree.
// `hvd_weighted_sum_<dtype>` (u64 to, u64 count, u32 vectors, u64 from, u64 stride, u64 weights,
// f64
//     factor): the sum of the vectors, each times its weight and the factor.
#pragma once

#include <cstddef>
#include <string>

#include "core/dtype.h"

namespace hvd {

inline constexpr std::size_t kMostAdasumVectors = 64;

// The kernels for float16, bfloat16, float32 and float64.
std::string adasum_ptx();
std::string dots_kernel_name(Dtype dtype);
std::string weighted_sum_kernel_name(Dtype dtype);
inline constexpr const char* kAddUpKernel = "hvd_add_up";
inline constexpr const char* kWeightsKernel = "hvd_weights";

}  // namespace hvd
