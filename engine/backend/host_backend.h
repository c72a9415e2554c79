// Runs buckets on host memory: turns the tensors of a bucket into views and picks the algorithm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/adasum.h"
#include "collective/allreduce.h"
#include "collective/exchange.h"
#include "collective/meeting.h"
#include "collective/reduce_scatter.h"
#include "control/request.h"

namespace hvd {

// One tensor of a bucket on this rank. Ranks are those of the set that runs the bucket. Sizes of
// first dimensions come from here, since the request is this rank's own and others' may differ.
struct Work {
  const Request* request = nullptr;
  const std::byte* in = nullptr;     // null: this rank is absent and gives zeros
  std::byte* out = nullptr;          // null: this rank drops the result
  int root = 0;                      // broadcast: who gives
  std::vector<std::int64_t> rows;    // allgather: first dimension on every rank
  std::vector<std::int64_t> splits;  // alltoall: rows that s gives to d, at s * size + d
};

// The rows of `dim0` that rank `owner` gets of a reducescatter, and where they begin.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
RowRange reducescatter_rows(std::int64_t dim0, int owner, int size);

class HostBackend {
 public:
  explicit HostBackend(Peers& peers);

  // Starts a bucket: works of one kind, in the same order on all ranks; they outlive the run.
  void begin(Kind kind, std::span<const Work> works);
  // Starts to wait for all ranks to come here.
  void begin_meeting();
  // Runs as far as possible. True when the bucket is complete.
  bool advance(PeerWait& blocked);
  // A rank whose kFinished counter is here has done its part of the bucket.
  BlockNumber end_block() const { return next_block_; }

 private:
  void begin_allreduce(std::span<const Work> works);
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
  Meeting meeting_;
  ReduceScatter reduce_scatter_;
  ViewList views_;                 // allreduce: all tensors; exchanges: what stays on this rank
  std::vector<ViewList> streams_;  // by giver, or by owner for a reducescatter
  Collective* running_ = nullptr;
  BlockNumber next_block_ = 0;
};

}  // namespace hvd
