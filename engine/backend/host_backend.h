// Runs buckets over the shared memory of one host: turns the tensors of a bucket into views and
// picks the algorithm.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "collective/adasum.h"
#include "collective/allreduce.h"
#include "collective/barrier.h"
#include "collective/exchange.h"
#include "collective/reduce_scatter.h"
#include "control/request.h"

namespace hvd {

class HostBackend final : public Backend {
 public:
  explicit HostBackend(Peers& peers);

  void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) override;
  void begin_negotiation() override;
  bool advance(PeerWait& blocked) override;
  BlockNumber end_block() const override { return next_block_; }

 private:
  void begin_allreduce(std::span<const Work> works, const AllreduceCut& cut);
  void begin_exchange();
  void begin_reducescatter(std::span<const Work> works);

  void fill_broadcast(const Work& work);
  void fill_allgather(const Work& work);
  void fill_alltoall(const Work& work);
  void fill_reducescatter(const Work& work);

  Peers& peers_;
  Allreduce allreduce_;
  Adasum adasum_;
  Exchange exchange_;
  Barrier meeting_;
  ReduceScatter reduce_scatter_;
  ViewList views_;                 // allreduce: all tensors; exchanges: what stays on this rank
  std::vector<ViewList> streams_;  // by giver, or by owner for a reducescatter
  Collective* running_ = nullptr;
  BlockNumber next_block_ = 0;
};

}  // namespace hvd
