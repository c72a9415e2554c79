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

namespace hvd {

class HostBackend final : public AlgorithmBackend {
 public:
  explicit HostBackend(Peers& peers);

  void begin_barrier() override;

 private:
  void clear() override;
  void begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) override;
  void begin_allgather(std::span<const Work> works) override;
  void begin_broadcast(std::span<const Work> works) override;
  void begin_alltoall(std::span<const Work> works) override;
  void begin_reducescatter(std::span<const Work> works) override;

  void fill_alltoall(const Work& work);
  Place place() const { return {.rank = peers_.rank(), .size = peers_.size()}; }

  Peers& peers_;
  Allreduce allreduce_;
  Adasum adasum_;
  Exchange exchange_;
  Barrier barrier_;
  ReduceScatter reduce_scatter_;
  std::vector<ViewList> streams_;  // by the rank that gives; reducescatter: by owner
};

}  // namespace hvd
