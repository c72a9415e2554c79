// Kernels that copy many pieces of memory at once, each element multiplied by a factor, as text
// that CUDA's driver translates (see reduction_ptx.h). They pack small tensors into one buffer,
// unpack and scale them.
//
// `hvd_move_<dtype>` (f64 factor, Piece pieces[kMostPieces]): blocks of row r move pieces[r].
// float16 and bfloat16 are multiplied in float32 and rounded once. Integers and bool have no
// factor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/dtype.h"

namespace hvd {

// As the kernels read it. Addresses are aligned to the elements; they are equal or apart.
struct MovedPiece {
  std::uint64_t to;
  std::uint64_t from;
  std::uint64_t count;  // of elements
};

// A kernel has at most 4 KiB of parameters.
inline constexpr std::size_t kMostPieces = 128;
// A thread loads so many elements before it stores the first one: the memory is far away.
inline constexpr std::size_t kMovedTogether = 4;

// A module of PTX with a kernel for each dtype.
std::string move_ptx();
// "hvd_move_float32".
std::string move_kernel_name(Dtype dtype);

}  // namespace hvd
