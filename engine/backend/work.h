// A tensor of a bucket on this rank, and what backends derive from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/views.h"
#include "control/request.h"
#include "core/memory.h"
#include "gpu/device_memory.h"
#include "gpu/stream_dependency.h"

namespace hvd {

// What low-bit formats have left out of a tensor, by element; empty: nothing yet.
using KeptErrors = std::vector<float>;

// Ranks are set ranks of the set that runs the bucket. Row counts are here, not in the request: it
// is this rank's own, and the first dimensions of the others may differ.
struct Work {
  const Request* request = nullptr;
  const std::byte* in = nullptr;           // null: this rank is absent and gives zeros
  std::byte* out = nullptr;                // null: this rank drops the result
  int root = 0;                            // of a collective that has one
  std::vector<std::int64_t> rows;          // RowCounts::kPerRank: first dimension on every rank
  std::vector<std::int64_t> splits;        // kPerPair: rows from s to d, at s * size + d
  int device = kHostDevice;                // where the addresses are valid
  LinkFormat format = LinkFormat::kExact;  // of an allreduce, between hosts
  StreamDependency* dependency = nullptr;  // of tensors on a GPU
  DeviceBlock* block = nullptr;            // the memory of `out`, if the engine allocates it
  float* errors = nullptr;                 // where the errors of a low-bit format go
  KeptErrors* kept = nullptr;              // those of the last use; null: they are not kept
  Rounding rounding = {};                  // to its codes
};

// Error feedback: adds what is kept to the tensor, which is in its output then, and keeps what the
// format leaves out this time. Nothing happens if the tensor travels exactly and nothing is kept.
void feed_back(Work& work);

// A rank of a set of ranks.
struct Place {
  int rank;
  int size;
};

// The rows of `dim0` that rank `owner` gets of a reducescatter.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
RowRange reducescatter_rows(std::int64_t dim0, int owner, int size);

inline std::size_t row_bytes_of(const Request& request) {
  return request.row_count() * size_of(request.dtype);
}
inline std::size_t bytes_of_rows(const Request& request, std::int64_t rows) {
  return static_cast<std::size_t>(rows) * row_bytes_of(request);
}
// Bytes that rank `from` sends to rank `to`, where there are splits.
std::size_t split_bytes(const Work& work, int from, int to, int size);
// First dimension of a rank's result. For collectives that change the shape.
std::int64_t result_rows(const Work& work, Place place);
// Whether an allgather's `rows` are as many as if all ranks had given as many as this one, though
// they have not.
bool hides_unequal_rows(const Work& work, std::int64_t rows);
// Bytes that a rank gives to the collective (0: a rank that only receives), and that it gets.
std::size_t given_bytes(const Work& work, Place place);
std::size_t taken_bytes(const Work& work, Place place);

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

// The whole tensor: to be moved, or to be reduced over `size` ranks. Low-bit formats and errors are
// those of an allreduce.
View moved_view(const Work& work);
View reduced_view(const Work& work, int size);
// Appends each rank's rows of an allgather to the stream of that rank.
void append_rows(const Work& work, Place place, std::vector<ViewList>& streams);
// Appends each rank's part of a reducescatter to the stream of that rank.
void append_parts(const Work& work, Place place, std::vector<ViewList>& streams);

}  // namespace hvd
