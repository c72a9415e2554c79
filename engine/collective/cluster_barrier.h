// All ranks of all hosts wait for each other and move nothing: the ranks of a host arrive, the
// first rank of each host tells the first ranks of the others, and then releases its own host.
#pragma once

#include <cstddef>

#include "collective/cluster_stages.h"

namespace hvd {

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
  bool exchange() override { return false; }
  bool has_posted_all() const override { return true; }

  std::vector<std::byte> heard_;  // one from every host
};

}  // namespace hvd
