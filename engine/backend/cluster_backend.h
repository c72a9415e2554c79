// Runs buckets over several hosts: shared memory inside each, TCP connections between them.
//
// Only advance() moves bytes. add_polls() says which descriptors make the next call worth while.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cluster_routes.h"
#include "collective/cluster_adasum.h"
#include "collective/cluster_allreduce.h"
#include "collective/cluster_barrier.h"
#include "collective/cluster_exchange.h"
#include "collective/cluster_reduce_scatter.h"
#include "collective/host_map.h"
#include "collective/links.h"

namespace hvd {

class ClusterBackend final : public CollectiveBackend {
 public:
  // `local_peers`: the ranks of this host, by their index in map.hosts[map.own]; `rank`, `size`: in
  // the set. Owns the descriptors of `links`, one for every other host and every channel of this
  // rank: connected, non-blocking.
  ClusterBackend(Peers& local_peers, HostMap map, int rank, int size,
                 const std::vector<DataLink>& links);

  void begin_barrier() override;
  // Throws LinkLost. In `blocked`, `rank` is an index on this host, `remote` a rank of the set.
  bool advance(PeerWait& blocked) override;
  BlockNumber end_block() const override;
  void add_polls(std::vector<pollfd>& polls) const override { links_.add_polls(polls); }
  void close_copies() override { links_.close_copies(); }

 private:
  void clear() override;
  void begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) override;
  void begin_allgather(std::span<const Work> works) override;
  void begin_broadcast(std::span<const Work> works) override;
  void begin_alltoall(std::span<const Work> works) override;
  void begin_reducescatter(std::span<const Work> works) override;

  void begin_exchange();

  const HostMap map_;
  const Place place_;
  Links links_;
  ClusterAllreduce allreduce_;
  ClusterExchange exchange_;
  ClusterBarrier barrier_;
  ClusterReduceScatter reduce_scatter_;
  ClusterAdasum adasum_;
  ClusterRoutes routes_;
  ViewList views_;
  std::vector<ViewList> parts_;  // of a reducescatter, by set rank
  Algorithm* running_ = nullptr;
  BlockNumber next_block_ = 0;
};

}  // namespace hvd
