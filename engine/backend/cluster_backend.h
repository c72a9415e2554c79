// Runs buckets over several hosts: shared memory inside each, TCP connections between them.
//
// Only advance() moves bytes. It throws LinkLost. In its `blocked`, `rank` is an index on this host
// and `remote` is a rank of the set. add_polls() gives the descriptors that must be ready before
// the next call is useful.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cluster_routes.h"
#include "collective/barrier.h"
#include "collective/cluster_adasum.h"
#include "collective/cluster_allreduce.h"
#include "collective/cluster_exchange.h"
#include "collective/cluster_reduce_scatter.h"
#include "collective/host_map.h"
#include "collective/links.h"

namespace hvd {

class ClusterBackend final : public AlgorithmBackend {
 public:
  // `local_peers`: the ranks of this host, by their index in map.hosts[map.own]; `rank`, `size`: in
  // the set. Owns the descriptors of `links`, one for every other host and every channel of this
  // rank: connected, non-blocking.
  ClusterBackend(Peers& local_peers, HostMap map, int rank, int size,
                 const std::vector<DataLink>& links);

  void begin_barrier() override;
  BlockNumber end_block() const override;
  void add_polls(std::vector<pollfd>& polls) const override { links_.add_polls(polls); }
  std::uint64_t link_bytes() const override { return links_.sent_bytes(); }
  void close_copies() override { links_.close_copies(); }

 private:
  void clear() override;
  void begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) override;
  void begin_allgather(std::span<const Work> works) override;
  void begin_broadcast(std::span<const Work> works) override;
  void begin_alltoall(std::span<const Work> works) override;
  void begin_reducescatter(std::span<const Work> works) override;

  const HostMap map_;
  const Place place_;
  Links links_;
  ClusterAllreduce allreduce_;
  ClusterExchange exchange_;
  ClusterBarrier barrier_;
  ClusterReduceScatter reduce_scatter_;
  ClusterAdasum adasum_;
  ClusterRoutes routes_;
  std::vector<ViewList> parts_;  // of a reducescatter, by set rank
};

}  // namespace hvd
