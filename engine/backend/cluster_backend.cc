#include "backend/cluster_backend.h"

#include <utility>

#include "backend/work_views.h"

namespace hvd {

ClusterBackend::ClusterBackend(Peers& local_peers, HostMap map, int rank, int size,
                               const std::vector<DataLink>& links)
    : map_(std::move(map)),
      rank_(rank),
      size_(size),
      links_(map_, links),
      allreduce_(local_peers, map_, links_),
      exchange_(local_peers, map_, links_),
      meeting_(local_peers, map_, links_),
      reduce_scatter_(local_peers, map_, links_, rank),
      adasum_(map_, links_, {.rank = rank, .member = local_peers.rank()}, allreduce_, exchange_),
      routes_(map_, links_, {.rank = rank, .member = local_peers.rank()}, exchange_),
      parts_(size) {}

void ClusterBackend::begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) {
  exchange_.clear();
  switch (kind) {
    case Kind::kAllreduce:
      return begin_allreduce(works, cut);
    case Kind::kBroadcast:
      routes_.describe_broadcasts(works);
      return begin_exchange();
    case Kind::kAllgather:
      routes_.describe_allgathers(works);
      return begin_exchange();
    case Kind::kAlltoall:
      routes_.describe_alltoalls(works);
      return begin_exchange();
    case Kind::kReducescatter:
      return begin_reducescatter(works);
    case Kind::kBarrier:
    case Kind::kJoin:
      running_ = nullptr;  // that all ranks arrived is all there is to it
      return;
  }
}

void ClusterBackend::begin_negotiation() {
  next_block_ += meeting_.begin(next_block_);
  running_ = &meeting_;
}

bool ClusterBackend::advance(PeerWait& blocked) {
  return running_ == nullptr || running_->advance(blocked);
}

// Before an Adasum has taken its last numbers, nobody can have passed them.
BlockNumber ClusterBackend::end_block() const {
  return next_block_ + (running_ == &adasum_ && adasum_.wants_blocks() ? 1 : 0);
}

void ClusterBackend::begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) {
  views_.clear();
  for (const Work& work : works) {
    views_.append({.in = work.in,
                   .out = work.out,
                   .size_bytes = work.request->size_bytes(),
                   .spec = spec_of(*work.request, size_)});
  }
  if (is_adasum(works)) {
    adasum_.begin(views_, next_block_);
    running_ = &adasum_;
  } else {
    next_block_ += allreduce_.begin(views_, next_block_, cut);
    running_ = &allreduce_;
  }
}

void ClusterBackend::begin_exchange() {
  next_block_ += exchange_.begin(next_block_);
  running_ = &exchange_;
}

void ClusterBackend::begin_reducescatter(std::span<const Work> works) {
  for (ViewList& part : parts_) part.clear();
  for (const Work& work : works) {
    const std::size_t row_bytes = row_bytes_of(*work.request);
    for (int owner = 0; owner < size_; ++owner) {
      const RowRange rows = reducescatter_rows(work.request->dims[0], owner, size_);
      parts_[owner].append(
          {.in = at_offset(work.in, static_cast<std::size_t>(rows.begin) * row_bytes),
           .out = owner == rank_ ? work.out : nullptr,
           .size_bytes = static_cast<std::size_t>(rows.count) * row_bytes,
           .spec = spec_of(*work.request, size_)});
    }
  }
  next_block_ += reduce_scatter_.begin(parts_, next_block_);
  running_ = &reduce_scatter_;
}

}  // namespace hvd
