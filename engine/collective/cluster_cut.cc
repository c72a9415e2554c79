#include "collective/cluster_cut.h"

#include <algorithm>

#include "collective/shares.h"

namespace hvd {

namespace {

constexpr std::size_t kLeastPart = 16 * 1024;

// The longest chunk. Each of its parts is worth a system call. If every host has one rank, one part
// from each host, which arrive at the same time, stay in the cache.
std::size_t longest_chunk(int channels, int hosts, std::size_t block_bytes, std::size_t alignment) {
  const auto host_count = static_cast<std::size_t>(hosts);
  if (channels > 1) {
    return std::max(block_bytes, kLeastPart * static_cast<std::size_t>(channels) * host_count);
  }
  const std::size_t part = std::clamp(block_bytes / host_count, kLeastPart, block_bytes / 4);
  return align_up(part, alignment) * host_count;
}

}  // namespace

ClusterCut cut_for_cluster(std::size_t stream_bytes, int channels, int hosts,
                           std::size_t cell_bytes, const AllreduceCut& tuned, bool has_low_bits) {
  ClusterCut cut{.alignment = has_low_bits ? kLowBitAlignment : kViewAlignment,
                 .stream_bytes = stream_bytes,
                 .channels = channels,
                 .hosts = hosts};
  if (stream_bytes == 0) return cut;
  // What travels of a low-bit chunk is a quarter or less.
  const std::size_t block_bytes =
      std::min((has_low_bits ? 4 : 1) * tuned.block_bytes(), cell_bytes);
  const std::size_t one_step_share =
      tuned.small_between_hosts_bytes() / static_cast<std::size_t>(hosts);
  const std::size_t one_step_bytes = one_step_share * static_cast<std::size_t>(channels);
  cut.one_step = !has_low_bits && stream_bytes <= std::min(one_step_bytes, cell_bytes);
  const std::size_t longest =
      std::min(longest_chunk(channels, hosts, block_bytes, cut.alignment), cell_bytes);
  cut.chunk_bytes =
      cut.one_step ? stream_bytes : pipeline_block_bytes(stream_bytes, longest, cut.alignment);
  cut.chunks = block_count(stream_bytes, cut.chunk_bytes);
  return cut;
}

Range ClusterCut::chunk(std::uint32_t index) const {
  return block_of(index, chunk_bytes, stream_bytes);
}

Range ClusterCut::share(std::uint32_t index, int channel) const {
  return share_of(channel, channels, chunk(index), alignment);
}

Range ClusterCut::part(std::uint32_t index, int channel, int host) const {
  const Range whole = share(index, channel);
  return one_step ? whole : share_of(host, hosts, whole, alignment);
}

}  // namespace hvd
