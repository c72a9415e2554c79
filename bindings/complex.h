// Complex numbers travel as pairs of real ones: the engine sees one more dimension, of 2.
#pragma once

#include <cstddef>
#include <string>

#include "control/request.h"
#include "core/error.h"

namespace hvd {

// Makes a tensor of real numbers one of complex numbers with such parts. Throws
// Error(kInvalidArgument) for an operation that complex numbers do not have.
inline void make_complex(Request& request) {
  const bool adds = request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage ||
                    request.op == ReduceOp::kAdasum;
  if (is_reduction(request.kind) && !adds) {
    throw Error(ErrorCode::kInvalidArgument, std::string("complex numbers have no ") +
                                                 name_of(request.op) +
                                                 "; they have Sum, Average and Adasum");
  }
  // The engine refuses scalars by their shape.
  if (request.dims_count == 0 && !collective_of(request.kind).keeps_shape()) return;
  if (request.dims_count == Request::kMaxDims) {
    throw Error(ErrorCode::kInvalidArgument,
                "the tensor of complex numbers has " + std::to_string(request.dims_count) +
                    " dimensions; at most " + std::to_string(Request::kMaxDims - 1) +
                    " are supported");
  }
  request.dims[static_cast<std::size_t>(request.dims_count++)] = 2;
}

}  // namespace hvd
