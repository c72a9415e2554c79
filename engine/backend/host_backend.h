// Runs buckets over the shared memory of one host. Each collective turns the tensors of a bucket
// into views and starts an algorithm.
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

class HostBackend final : public CollectiveBackend {
 public:
  explicit HostBackend(Peers& peers);

  void begin_barrier() override;
  bool advance(PeerWait& blocked) override;
  BlockNumber end_block() const override { return next_block_; }

 private:
  void clear() override;
  void begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) override;
  void begin_allgather(std::span<const Work> works) override;
  void begin_broadcast(std::span<const Work> works) override;
  void begin_alltoall(std::span<const Work> works) override;
  void begin_reducescatter(std::span<const Work> works) override;

  void begin_exchange();
  void fill_alltoall(const Work& work);
  Place place() const { return {.rank = peers_.rank(), .size = peers_.size()}; }

  Peers& peers_;
  Allreduce allreduce_;
  Adasum adasum_;
  Exchange exchange_;
  Barrier barrier_;
  ReduceScatter reduce_scatter_;
  ViewList views_;                 // allreduce: all tensors; exchanges: what stays on this rank
  std::vector<ViewList> streams_;  // by the rank that gives; reducescatter: by owner
  Algorithm* running_ = nullptr;
  BlockNumber next_block_ = 0;
};

}  // namespace hvd
