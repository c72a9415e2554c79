#include "backend/host_backend.h"

#include "backend/work_views.h"

namespace hvd {

HostBackend::HostBackend(Peers& peers)
    : peers_(peers),
      allreduce_(peers),
      adasum_(peers),
      exchange_(peers),
      meeting_(peers),
      reduce_scatter_(peers),
      streams_(peers.size()) {}

void HostBackend::begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) {
  views_.clear();
  for (ViewList& stream : streams_) stream.clear();
  switch (kind) {
    case Kind::kAllreduce:
      return begin_allreduce(works, cut);
    case Kind::kBroadcast:
      for (const Work& work : works) fill_broadcast(work);
      return begin_exchange();
    case Kind::kAllgather:
      for (const Work& work : works) fill_allgather(work);
      return begin_exchange();
    case Kind::kAlltoall:
      for (const Work& work : works) fill_alltoall(work);
      return begin_exchange();
    case Kind::kReducescatter:
      return begin_reducescatter(works);
    case Kind::kBarrier:
    case Kind::kJoin:
      running_ = nullptr;  // that all ranks arrived is all there is to it
      return;
  }
}

void HostBackend::begin_negotiation() {
  next_block_ += meeting_.begin(next_block_);
  running_ = &meeting_;
}

bool HostBackend::advance(PeerWait& blocked) {
  return running_ == nullptr || running_->advance(blocked);
}

void HostBackend::begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) {
  for (const Work& work : works) {
    views_.append({.in = work.in,
                   .out = work.out,
                   .size_bytes = work.request->size_bytes(),
                   .spec = spec_of(*work.request, peers_.size())});
  }
  if (is_adasum(works)) {
    next_block_ += adasum_.begin(views_, next_block_);
    running_ = &adasum_;
  } else {
    next_block_ += allreduce_.begin(views_, next_block_, cut);
    running_ = &allreduce_;
  }
}

void HostBackend::begin_exchange() {
  next_block_ += exchange_.begin(streams_, views_, next_block_);
  running_ = &exchange_;
}

void HostBackend::begin_reducescatter(std::span<const Work> works) {
  for (const Work& work : works) fill_reducescatter(work);
  next_block_ += reduce_scatter_.begin(streams_, next_block_);
  running_ = &reduce_scatter_;
}

void HostBackend::fill_broadcast(const Work& work) {
  const View view{
      .in = work.in, .out = work.out, .size_bytes = work.request->size_bytes(), .spec = {}};
  streams_[work.root].append(view);
  if (work.root == peers_.rank()) views_.append(view);
}

void HostBackend::fill_allgather(const Work& work) {
  const std::size_t row_bytes = row_bytes_of(*work.request);
  std::size_t begin = 0;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    const View view{.in = rank == peers_.rank() ? work.in : nullptr,
                    .out = at_offset(work.out, begin),
                    .size_bytes = static_cast<std::size_t>(work.rows[rank]) * row_bytes,
                    .spec = {}};
    streams_[rank].append(view);
    if (rank == peers_.rank()) views_.append(view);
    begin += view.size_bytes;
  }
}

// A giver's rows lie in the order of the takers, a taker's in the order of the givers. In its
// stream a giver starts with the next rank, so that at any time the takers are different ranks.
void HostBackend::fill_alltoall(const Work& work) {
  const int size = peers_.size();
  const int self = peers_.rank();
  const std::size_t row_bytes = row_bytes_of(*work.request);
  const auto bytes = [&](int giver, int taker) {
    return static_cast<std::size_t>(work.splits[giver * size + taker]) * row_bytes;
  };
  std::vector<std::size_t> in_begins(size, 0);
  for (int rank = 1; rank < size; ++rank) {
    in_begins[rank] = in_begins[rank - 1] + bytes(self, rank - 1);
  }
  std::size_t out_begin = 0;
  for (int giver = 0; giver < size; ++giver) {
    const auto view_for = [&](int taker) {
      return View{.in = giver == self ? at_offset(work.in, in_begins[taker]) : nullptr,
                  .out = taker == self ? at_offset(work.out, out_begin) : nullptr,
                  .size_bytes = bytes(giver, taker),
                  .spec = {}};
    };
    for (int step = 1; step < size; ++step) streams_[giver].append(view_for((giver + step) % size));
    if (giver == self) views_.append(view_for(self));
    out_begin += bytes(giver, self);
  }
}

void HostBackend::fill_reducescatter(const Work& work) {
  const std::size_t row_bytes = row_bytes_of(*work.request);
  for (int owner = 0; owner < peers_.size(); ++owner) {
    const RowRange rows = reducescatter_rows(work.request->dims[0], owner, peers_.size());
    const std::size_t begin = static_cast<std::size_t>(rows.begin) * row_bytes;
    streams_[owner].append({.in = at_offset(work.in, begin),
                            .out = owner == peers_.rank() ? work.out : nullptr,
                            .size_bytes = static_cast<std::size_t>(rows.count) * row_bytes,
                            .spec = spec_of(*work.request, peers_.size())});
  }
}

}  // namespace hvd
