// How streams are cut into blocks, and blocks into a share per rank: at multiples of
// kViewAlignment, shares in rank order, the last ones shorter or empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "collective/views.h"

namespace hvd {

constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kViewAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

inline constexpr std::size_t kLeastBlockBytes = 64 * 1024;

// The length of blocks that are processed in a pipeline. There are at least four of them, unless
// they would be too short to be worth a synchronisation.
constexpr std::size_t pipeline_block_bytes(std::size_t stream_bytes, std::size_t cell_bytes,
                                           std::size_t alignment = kViewAlignment) {
  return std::min(std::max(align_up(stream_bytes / 4, alignment), kLeastBlockBytes), cell_bytes);
}

constexpr std::uint32_t block_count(std::size_t stream_bytes, std::size_t block_bytes) {
  return static_cast<std::uint32_t>((stream_bytes + block_bytes - 1) / block_bytes);
}

inline Range block_of(std::uint64_t block, std::size_t block_bytes, std::size_t stream_bytes) {
  const std::size_t begin = std::min(block * block_bytes, stream_bytes);
  return {begin, std::min(begin + block_bytes, stream_bytes)};
}

inline Range share_of(int rank, int size, Range range, std::size_t alignment = kViewAlignment) {
  const std::size_t length = range.end - range.begin;
  const std::size_t ranks = static_cast<std::size_t>(size);
  const std::size_t share = align_up((length + ranks - 1) / ranks, alignment);
  const std::size_t index = static_cast<std::size_t>(rank);
  return {range.begin + std::min(index * share, length),
          range.begin + std::min((index + 1) * share, length)};
}

// Stages a block for ranks that each read their own share of it. `own`, this rank's share, is read
// from its tensors. If the rank gives zeros there is no tensor, so its share is staged, too.
inline void stage_for_others(const ViewList& views, Range block, Range own, std::byte* cell) {
  if (views.has_zeros()) {
    copy_in(views, block, cell);
    return;
  }
  copy_in(views, {block.begin, own.begin}, cell);
  copy_in(views, {own.end, block.end}, cell + (own.end - block.begin));
}

}  // namespace hvd
