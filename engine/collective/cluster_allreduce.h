// Allreduce over several hosts: a reduce-scatter in the shared memory of each host, a sum over the
// hosts for every channel (collective/channel_reduction.h), and an allgather on each host.
//
// Chunks are pipelined: while the shares of one chunk are on the links, the next chunks are summed
// inside the hosts and the results of earlier ones are copied. An element is summed over the ranks
// of each host in rank order, then over the hosts in order, on one rank. So results are bitwise
// equal on all ranks, for any place in a bucket and any timing. An absent rank gives zeros.
//
// A stream with views in low-bit formats is summed over the hosts by LowBitChannel; inside a host
// everything is exact.
//
// Bytes per link and direction, for S bytes on links, C channels and H hosts: 2 S / (C H). Extra
// memory: two parts from every other host, and, on an absent rank, five chunks; with low-bit
// formats 12 coded parts for every host.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/channel_reduction.h"
#include "collective/exact_channel.h"
#include "collective/low_bit_channel.h"
#include "collective/stage_ahead.h"

namespace hvd {

class ClusterAllreduce final : public ClusterStages {
 public:
  ClusterAllreduce(Peers& peers, const HostMap& map, Links& links);

  // Starts on `views`, which outlives the run; weights in their specs are those of this host's
  // ranks. Returns how many block numbers it takes.
  std::uint32_t begin(const ViewList& views, BlockNumber first_block, const AllreduceCut& cut = {});

 private:
  bool make_ready(std::uint32_t block) override;
  void stage(std::uint32_t block) override;
  void use(std::uint32_t block) override;
  bool exchange() override;
  bool has_posted_all() const override;

  void stage_partial(std::uint32_t block, std::uint32_t chunk);
  void stage_results(std::uint32_t block, std::uint32_t chunk);
  void sum_shares(std::uint32_t block, std::uint32_t chunk);
  void copy_results(std::uint32_t block, std::uint32_t chunk);
  bool is_own(int channel) const;

  void choose_channels(bool has_low_bits);

  std::vector<ExactChannel> exact_channels_;
  std::vector<LowBitChannel> low_bit_channels_;
  std::vector<ChannelReduction*> own_channels_;  // those of this run
  const ViewList* views_ = nullptr;
  ClusterCut cut_;
  SumMemory sums_;
};

}  // namespace hvd
