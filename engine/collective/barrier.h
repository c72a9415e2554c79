// All ranks wait for each other and move no data. A barrier follows a bucket in which some rank
// takes part without a tensor, so that the other ranks do not run ahead of that rank.
#pragma once

#include <cstddef>

#include "collective/algorithm.h"
#include "collective/stage_ahead.h"

namespace hvd {

// On one host.
class Barrier final : public Algorithm {
 public:
  explicit Barrier(Peers& peers) : peers_(peers) {}

  // Returns how many block numbers it takes.
  std::uint32_t begin(BlockNumber block);
  bool advance(PeerWait& blocked) override;

 private:
  Peers& peers_;
  BlockNumber block_ = 0;
  bool has_arrived_ = false;
};

// The ranks of a host arrive, the first rank of each host tells the first ranks of the others, and
// then releases its own host.
class ClusterBarrier final : public ClusterStages {
 public:
  ClusterBarrier(Peers& peers, const HostMap& map, Links& links)
      : ClusterStages(peers, map, links) {}

  // Returns how many block numbers it takes.
  std::uint32_t begin(BlockNumber first_block);

 private:
  // Blocks: all have arrived; all may go on.
  static constexpr std::uint32_t kArrive = 0;
  static constexpr std::uint32_t kRelease = 1;

  bool is_first() const { return peers_.rank() == 0; }
  bool make_ready(std::uint32_t block) override;
  void check_heard() const;
  void stage(std::uint32_t /*block*/) override {}
  bool wants(int rank, std::uint32_t block) const override { return block == kArrive || rank == 0; }
  void use(std::uint32_t block) override;

  std::vector<std::byte> heard_;  // a byte from every host
};

}  // namespace hvd
