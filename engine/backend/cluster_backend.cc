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

void ClusterBackend::begin_barrier() { run(barrier_, next_block_); }

// An Adasum takes its numbers as it goes. No rank passes the last ones before this rank has taken
// them.
BlockNumber ClusterBackend::end_block() const {
  return next_block_ + (running_ == &adasum_ && adasum_.wants_blocks() ? 1 : 0);
}

void ClusterBackend::begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) {
  for (const Work& work : works) {
    const View view = reduced_view(work, place_.size);
    views_.append(view, is_low_bit(view.format) ? kLowBitAlignment : kViewAlignment);
  }
  if (is_adasum(works)) {
    adasum_.begin(views_, next_block_);
    running_ = &adasum_;
  } else {
    run(allreduce_, views_, next_block_, cut);
  }
}

void ClusterBackend::begin_allgather(std::span<const Work> works) {
  routes_.describe_allgathers(works);
  run(exchange_, next_block_);
}

void ClusterBackend::begin_broadcast(std::span<const Work> works) {
  routes_.describe_broadcasts(works);
  run(exchange_, next_block_);
}

void ClusterBackend::begin_alltoall(std::span<const Work> works) {
  routes_.describe_alltoalls(works);
  run(exchange_, next_block_);
}

void ClusterBackend::begin_reducescatter(std::span<const Work> works) {
  for (const Work& work : works) append_parts(work, place_, parts_);
  run(reduce_scatter_, parts_, next_block_);
}

}  // namespace hvd
