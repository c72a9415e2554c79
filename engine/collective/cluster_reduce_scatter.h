// Every rank of every host gets its part of a reduction.
//
// Take one rank. On each other host, the member that owns the rank's channel sums the rank's part
// and sends the partial sums to the rank. The rank adds them up in the order of the hosts. So each
// partial sum crosses one link once, and the bits are those of an allreduce over the hosts.
//
// A block holds a piece of every rank's part. There is memory for the partial sums of two blocks
// that leave, and of two blocks that arrive.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "collective/reduce_scatter.h"
#include "collective/stage_ahead.h"
#include "collective/views.h"

namespace hvd {

class ClusterReduceScatter final : public ClusterStages {
 public:
  // `rank`: in the set.
  ClusterReduceScatter(Peers& peers, const HostMap& map, Links& links, int rank);

  // `streams[q]`, by set rank: as for ReduceScatter. Returns how many block numbers it takes.
  std::uint32_t begin(const std::vector<ViewList>& streams, BlockNumber first_block);

 private:
  static constexpr std::uint32_t kSlots = 2;  // blocks whose partial sums may be under way

  // A rank; its part is summed here.
  struct Target {
    int rank = 0;
    Link* link = nullptr;  // null: this rank itself
    std::vector<std::byte> slots;
    std::array<std::uint64_t, kSlots> sent_ends{};
  };
  // Another host's partial sums for this rank.
  struct Source {
    int host = 0;
    Link* link = nullptr;
    std::vector<std::byte> slots;
    std::array<std::uint64_t, kSlots> ends{};
  };

  bool make_ready(std::uint32_t block) override;
  void stage(std::uint32_t block) override;
  void use(std::uint32_t block) override;
  bool exchange() override;
  bool has_posted_all() const override { return added_ == plan_.blocks; }

  void sum_for(Target& target, std::uint32_t block);
  bool post_receives();
  bool may_add() const;
  void add_next();
  bool is_direct(const View& view) const;
  Range range_of(int rank, std::uint32_t block) const;
  std::byte* slot(std::vector<std::byte>& slots, std::uint32_t block) const;

  const int rank_;
  std::vector<Target> targets_;
  std::vector<bool> is_target_;  // by set rank
  std::vector<Source> sources_;
  std::vector<const std::byte*> addends_;  // by host
  const std::vector<ViewList>* streams_ = nullptr;
  ReduceScatterPlan plan_;
  std::uint32_t awaited_ = 0;  // blocks of which the receives are posted
  std::uint32_t added_ = 0;    // blocks whose result is complete
};

}  // namespace hvd
