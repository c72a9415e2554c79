// Kernels that reduce elements of several ranks' memory, as text that CUDA's driver translates. The
// engine is built without CUDA's compiler, and one text serves every GPU.
//
// They compute what kernels/reduce.h promises, bit for bit. Sources are taken in rank order, each
// multiplied by `prescale`. float16 and bfloat16 are computed in float32 and rounded once. The
// result is multiplied by `postscale`. Integers wrap around and have no factors. For bool, Sum and
// Max are "or".
#pragma once

#include <cstddef>
#include <string>

#include "core/dtype.h"
#include "core/reduce_op.h"

namespace hvd {

// A kernel has the parameters (u64 to, u64 count, u32 sources, f64 prescale, f64 postscale, u64
// from[]).
inline constexpr std::size_t kMostSources = 64;

// A module of PTX with a kernel for each pair of a dtype and an op that has_reduction_kernel().
std::string reduction_ptx();
// "hvd_Sum_float32".
std::string reduction_kernel_name(Dtype dtype, ReduceOp op);
// Sum, Product, Min or Max. An average is a sum with a factor.
bool has_reduction_kernel(ReduceOp op);

}  // namespace hvd
