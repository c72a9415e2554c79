#include "backend/cluster_backend.h"

#include <utility>

#include "backend/work_views.h"

namespace hvd {

ClusterBackend::ClusterBackend(Peers& local_peers, HostMap map, int rank, int size,
                               const std::vector<DataLink>& links)
    : map_(std::move(map)),
      size_(size),
      links_(map_, links),
      allreduce_(local_peers, map_, links_),
      exchange_(local_peers, map_, links_),
      meeting_(local_peers, map_, links_),
      routes_(map_, links_, exchange_, rank, local_peers.rank()) {}

void ClusterBackend::begin(Kind kind, std::span<const Work> works) {
  exchange_.clear();
  switch (kind) {
    case Kind::kAllreduce:
      return begin_allreduce(works);
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
    case Kind::kBarrier:
    case Kind::kJoin:
      running_ = nullptr;  // that all ranks arrived is all there is to it
      return;
  }
}

void ClusterBackend::begin_meeting() {
  next_block_ += meeting_.begin(next_block_);
  running_ = &meeting_;
}

bool ClusterBackend::advance(PeerWait& blocked) {
  return running_ == nullptr || running_->advance(blocked);
}

void ClusterBackend::begin_allreduce(std::span<const Work> works) {
  views_.clear();
  for (const Work& work : works) {
    views_.append({.in = work.in,
                   .out = work.out,
                   .size_bytes = work.request->size_bytes(),
                   .spec = spec_of(*work.request, size_)});
  }
  next_block_ += allreduce_.begin(views_, next_block_);
  running_ = &allreduce_;
}

void ClusterBackend::begin_exchange() {
  next_block_ += exchange_.begin(next_block_);
  running_ = &exchange_;
}

}  // namespace hvd
