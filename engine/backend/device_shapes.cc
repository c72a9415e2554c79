#include "backend/device_shapes.h"

#include <numeric>

namespace hvd {

std::size_t split_bytes(const Work& work, int giver, int taker, int size) {
  const std::int64_t rows = work.splits[static_cast<std::size_t>(giver * size + taker)];
  return static_cast<std::size_t>(rows) * row_bytes_of(*work.request);
}

std::size_t given_bytes(const Work& work, Place place) {
  const Request& request = *work.request;
  std::size_t bytes = 0;
  switch (request.kind) {
    case Kind::kBroadcast:
      return work.root == place.rank ? request.size_bytes() : 0;
    case Kind::kAllgather:
      return static_cast<std::size_t>(work.rows[static_cast<std::size_t>(place.rank)]) *
             row_bytes_of(request);
    case Kind::kAlltoall:
      for (int taker = 0; taker < place.size; ++taker) {
        bytes += split_bytes(work, place.rank, taker, place.size);
      }
      return bytes;
    default:
      return request.size_bytes();
  }
}

std::size_t taken_bytes(const Work& work, Place place) {
  const Request& request = *work.request;
  std::size_t bytes = 0;
  switch (request.kind) {
    case Kind::kAllgather:
      return static_cast<std::size_t>(
                 std::accumulate(work.rows.begin(), work.rows.end(), std::int64_t{0})) *
             row_bytes_of(request);
    case Kind::kAlltoall:
      for (int giver = 0; giver < place.size; ++giver) {
        bytes += split_bytes(work, giver, place.rank, place.size);
      }
      return bytes;
    case Kind::kReducescatter: {
      const RowRange rows = reducescatter_rows(request.dims[0], place.rank, place.size);
      return static_cast<std::size_t>(rows.count) * row_bytes_of(request);
    }
    default:
      return request.size_bytes();
  }
}

}  // namespace hvd
