// What backends read off a Work.
#pragma once

#include <cstddef>
#include <span>

#include "backend/backend.h"
#include "kernels/reduce.h"

namespace hvd {

inline std::size_t row_bytes_of(const Request& request) {
  return request.row_count() * size_of(request.dtype);
}

inline const std::byte* at_offset(const std::byte* base, std::size_t offset) {
  return base == nullptr ? nullptr : base + offset;
}

inline std::byte* at_offset(std::byte* base, std::size_t offset) {
  return base == nullptr ? nullptr : base + offset;
}

// `size`: of the set.
inline ReduceSpec spec_of(const Request& request, int size) {
  return {.dtype = request.dtype,
          .op = request.op,
          .prescale = request.prescale,
          .postscale = request.postscale,
          .divisor = size};
}

// Adasum is never fused with other ops.
bool is_adasum(std::span<const Work> works);

}  // namespace hvd
