// How the stream of an allreduce between hosts is cut: into chunks, a chunk into one share for each
// channel, a share into one part for each host.
//
// A rank that owns a channel sums its share over the ranks of its host, and the owner on host h
// sums part h over the hosts. In one step there are no parts: all owners get the whole share from
// all hosts. Low-bit formats (kernels/low_bit.h) never take one step, and are cut between blocks of
// elements, so that neither the size nor the place in a bucket changes a result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "collective/views.h"
#include "core/tuning.h"

namespace hvd {

struct ClusterCut {
  bool one_step = true;
  std::size_t alignment = kViewAlignment;  // of cuts
  std::size_t stream_bytes = 0;
  std::size_t chunk_bytes = 0;
  std::uint32_t chunks = 0;
  int channels = 1;
  int hosts = 1;

  Range chunk(std::uint32_t index) const;
  Range share(std::uint32_t index, int channel) const;
  Range part(std::uint32_t index, int channel, int host) const;
};

// Of views in low-bit formats, and of cuts in a stream that has some.
inline constexpr std::size_t kLowBitAlignment = kLowBitBlock * sizeof(float);

// The same on all ranks of all hosts. `cell_bytes` is the most that a chunk can have.
ClusterCut cut_for_cluster(std::size_t stream_bytes, int channels, int hosts,
                           std::size_t cell_bytes, const AllreduceCut& tuned = {},
                           bool has_low_bits = false);

// How many chunks are under way. Shares are summed inside the host kChunksAhead chunks before their
// results are copied to its ranks. On a link the parts of a chunk are kPartsAhead chunks before its
// results. That must be fewer: otherwise a result would wait for parts that wait for the result.
inline constexpr std::uint32_t kChunksAhead = 4;
inline constexpr std::uint32_t kPartsAhead = 2;
static_assert(kPartsAhead < kChunksAhead);

// Two passes over the same chunks, in a fixed order that all ranks know: the second pass follows
// the first at a distance of `lead` chunks.
struct Turn {
  bool is_second = false;
  std::uint32_t chunk = 0;
};

// The turn number `index` of 2 * chunks: for a lead of 2, first 0, 1; then second 0, first 2,
// second 1, first 3 ...
constexpr Turn turn_of(std::uint32_t index, std::uint32_t chunks, std::uint32_t lead) {
  lead = std::min(lead, chunks);
  if (index < lead) return {.is_second = false, .chunk = index};
  const std::uint32_t beyond = index - lead;
  const std::uint32_t pairs = chunks - lead;
  if (beyond >= 2 * pairs) return {.is_second = true, .chunk = beyond - pairs};
  const bool is_second = beyond % 2 == 0;
  return {.is_second = is_second, .chunk = beyond / 2 + (is_second ? 0 : lead)};
}

}  // namespace hvd
