#include "backend/host_backend.h"

namespace hvd {

HostBackend::HostBackend(Peers& peers)
    : peers_(peers), allreduce_(peers), exchange_(peers), meeting_(peers), streams_(peers.size()) {}

void HostBackend::begin(Kind kind, std::span<const Work> works) {
  views_.clear();
  for (ViewList& stream : streams_) stream.clear();
  switch (kind) {
    case Kind::kAllreduce:
      fill_allreduce(works);
      next_block_ += allreduce_.begin(views_, next_block_);
      running_ = &allreduce_;
      return;
    case Kind::kBroadcast:
      fill_broadcast(works);
      break;
    case Kind::kAllgather:
      fill_allgather(works);
      break;
    case Kind::kBarrier:
    default:
      running_ = nullptr;  // that all ranks arrived is all there is to it
      return;
  }
  next_block_ += exchange_.begin(streams_, next_block_);
  running_ = &exchange_;
}

void HostBackend::begin_meeting() {
  next_block_ += meeting_.begin(next_block_);
  running_ = &meeting_;
}

RowRange reducescatter_rows(std::int64_t dim0, int owner, int size) {
  return {0, dim0 / size + (owner < dim0 % size ? 1 : 0)};
}

bool HostBackend::advance(PeerWait& blocked) {
  return running_ == nullptr || running_->advance(blocked);
}

void HostBackend::fill_allreduce(std::span<const Work> works) {
  for (const Work& work : works) {
    const Request& request = *work.request;
    views_.append({.in = work.in,
                   .out = work.out,
                   .size_bytes = request.size_bytes(),
                   .spec = {.dtype = request.dtype,
                            .op = request.op,
                            .prescale = request.prescale,
                            .postscale = request.postscale,
                            .divisor = peers_.size()}});
  }
}

void HostBackend::fill_broadcast(std::span<const Work> works) {
  for (const Work& work : works) {
    ViewList& stream = streams_[work.root];
    stream.append(
        {.in = work.in, .out = work.out, .size_bytes = work.request->size_bytes(), .spec = {}});
  }
}

void HostBackend::fill_allgather(std::span<const Work> works) {
  for (const Work& work : works) {
    const std::size_t row_bytes = work.request->row_count() * size_of(work.request->dtype);
    std::byte* out = work.out;
    for (int rank = 0; rank < peers_.size(); ++rank) {
      const std::size_t size_bytes = static_cast<std::size_t>(work.rows[rank]) * row_bytes;
      const std::byte* in = rank == peers_.rank() ? work.in : nullptr;
      streams_[rank].append({.in = in, .out = out, .size_bytes = size_bytes, .spec = {}});
      out += size_bytes;
    }
  }
}

}  // namespace hvd
