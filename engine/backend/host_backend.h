// Runs buckets on host memory: turns the tensors of a bucket into views and picks the algorithm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/allreduce.h"
#include "collective/exchange.h"
#include "collective/meeting.h"
#include "control/request.h"

namespace hvd {

// One tensor of a bucket on this rank.
struct Work {
  const Request* request = nullptr;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int root = 0;
  std::vector<std::int64_t> rows;  // allgather: first dimension on every rank
  std::vector<std::int64_t> splits;
};
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
  void fill_allreduce(std::span<const Work> works);
  void fill_broadcast(std::span<const Work> works);
  void fill_allgather(std::span<const Work> works);

  Peers& peers_;
  Allreduce allreduce_;
  Exchange exchange_;
  Meeting meeting_;
  ViewList views_;
  std::vector<ViewList> streams_;
  Collective* running_ = nullptr;
  BlockNumber next_block_ = 0;
};

}  // namespace hvd
