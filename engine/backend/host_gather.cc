#include "backend/host_gather.h"

namespace hvd {

void HostGather::begin(Backend& host, std::span<const std::byte> own, int size) {
  own_.assign(own.begin(), own.end());
  all_.resize(own_.size() * static_cast<std::size_t>(size));
  request_ = {};
  request_.kind = Kind::kAllgather;
  request_.dtype = Dtype::kUint8;
  request_.dims_count = 1;
  request_.dims[0] = static_cast<std::int64_t>(own_.size());
  work_ = {.request = &request_,
           .in = own_.data(),
           .out = all_.data(),
           .rows = std::vector(static_cast<std::size_t>(size), request_.dims[0]),
           .splits = {}};
  host.begin(Kind::kAllgather, {&work_, 1}, {});
}

std::span<const std::byte> HostGather::of(int rank) const {
  return std::span(all_).subspan(static_cast<std::size_t>(rank) * own_.size(), own_.size());
}

}  // namespace hvd
