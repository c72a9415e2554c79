// All ranks of all hosts wait for each other and move nothing: the ranks of a host come together,
// the first of each host tells those of the others, and then lets its own go.
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
  // Blocks: all have come; all may go.
  static constexpr std::uint32_t kCome = 0;
  static constexpr std::uint32_t kGo = 1;

  bool is_first() const { return peers_.rank() == 0; }
  bool make_ready(std::uint32_t block) override;
  void check_heard() const;
  void stage(std::uint32_t /*block*/) override {}
  bool wants(int rank, std::uint32_t block) const override { return block == kCome || rank == 0; }
  void use(std::uint32_t block) override;
  bool exchange() override { return false; }
  bool has_posted_all() const override { return true; }

  std::vector<std::byte> heard_;  // one from every host
};

}  // namespace hvd
