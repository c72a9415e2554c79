#include "backend/cluster_backend.h"

#include <utility>

namespace hvd {

ClusterBackend::ClusterBackend(Peers& local_peers, HostMap map, int rank, int size,
                               const std::vector<DataLink>& links)
    : map_(std::move(map)),
      place_{.rank = rank, .size = size},
      links_(map_, links),
      allreduce_(local_peers, map_, links_),
      exchange_(local_peers, map_, links_),
      barrier_(local_peers, map_, links_),
      reduce_scatter_(local_peers, map_, links_, rank),
      adasum_(map_, links_, {.rank = rank, .member = local_peers.rank()}, allreduce_, exchange_),
      routes_(map_, links_, {.rank = rank, .member = local_peers.rank()}, exchange_),
      parts_(size) {}

void ClusterBackend::clear() {
  exchange_.clear();
  views_.clear();
  for (ViewList& part : parts_) part.clear();
  running_ = nullptr;
}

void ClusterBackend::begin_barrier() {
  next_block_ += barrier_.begin(next_block_);
  running_ = &barrier_;
}

bool ClusterBackend::advance(PeerWait& blocked) {
  return running_ == nullptr || running_->advance(blocked);
}

// No rank has passed the last numbers of an Adasum before this one has taken them.
BlockNumber ClusterBackend::end_block() const {
  return next_block_ + (running_ == &adasum_ && adasum_.wants_blocks() ? 1 : 0);
}

void ClusterBackend::begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) {
  for (const Work& work : works) views_.append(reduced_view(work, place_.size));
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

void ClusterBackend::begin_allgather(std::span<const Work> works) {
  routes_.describe_allgathers(works);
  begin_exchange();
}

void ClusterBackend::begin_broadcast(std::span<const Work> works) {
  routes_.describe_broadcasts(works);
  begin_exchange();
}

void ClusterBackend::begin_alltoall(std::span<const Work> works) {
  routes_.describe_alltoalls(works);
  begin_exchange();
}

void ClusterBackend::begin_reducescatter(std::span<const Work> works) {
  for (const Work& work : works) append_parts(work, place_, parts_);
  next_block_ += reduce_scatter_.begin(parts_, next_block_);
  running_ = &reduce_scatter_;
}

}  // namespace hvd
