// A channel's sums over the hosts in the tensors' own dtypes, sent from their places and received
// there. A result arrives only after the partial sums in its place have left, so both use the same
// memory.
#pragma once

#include "collective/channel_reduction.h"

namespace hvd {

class ExactChannel final : public ChannelReduction {
 public:
  ExactChannel(const HostMap& map, Links& links, int channel)
      : ChannelReduction(map, links, channel),
        addends_(map.hosts.size()),
        slots_(map.hosts.size()) {}

 private:
  void prepare() override;
  bool may_reduce(std::uint32_t chunk) const override;
  void send_parts(std::uint32_t chunk) override;
  void send_results(std::uint32_t chunk) override;
  void receive_part(Source& source, std::uint32_t chunk) override;
  void receive_result(Source& source, std::uint32_t chunk) override;
  void reduce_part(std::uint32_t chunk) override;
  std::byte* slot(const Source& source, std::uint32_t chunk);

  std::vector<const std::byte*> addends_;      // by host
  std::vector<std::vector<std::byte>> slots_;  // by host: parts that arrive
  std::size_t slot_bytes_ = 0;
};

}  // namespace hvd
