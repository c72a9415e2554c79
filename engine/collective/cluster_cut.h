// How the stream of an allreduce between hosts is cut: into chunks, a chunk into one share for each
// channel, a share into one part for each host.
//
// A rank that owns a channel sums its share over the ranks of its host, and the owner on host h
// sums part h over the hosts. In one step there are no parts: all owners get the whole share from
// all hosts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/views.h"
#include "core/tuning.h"

namespace hvd {

struct ClusterCut {
  bool one_step = true;
  std::size_t stream_bytes = 0;
  std::size_t chunk_bytes = 0;
  std::uint32_t chunks = 0;
  int channels = 1;
  int hosts = 1;

  Range chunk(std::uint32_t index) const;
  Range share(std::uint32_t index, int channel) const;
  Range part(std::uint32_t index, int channel, int host) const;
};

// The same on all ranks of all hosts. `cell_bytes` is the most that a chunk can have when a host
// has several ranks.
ClusterCut cut_for_cluster(std::size_t stream_bytes, int channels, int hosts,
                           std::size_t cell_bytes, const AllreduceCut& tuned = {});

// What is under way at any time. Shares are summed inside the host kChunksAhead chunks before they
// are given back to its ranks; on a link the parts of a chunk go kPartsAhead chunks before its
// results do, which must be fewer, or a result would wait for parts that wait for it.
inline constexpr std::uint32_t kChunksAhead = 4;
inline constexpr std::uint32_t kPartsAhead = 2;
static_assert(kPartsAhead < kChunksAhead);

}  // namespace hvd
