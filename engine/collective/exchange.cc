#include "collective/exchange.h"

#include <algorithm>

#include "collective/shares.h"

namespace hvd {

std::uint32_t Exchange::begin(const std::vector<ViewList>& streams, const ViewList& own,
                              BlockNumber first_block) {
  streams_ = &streams;
  own_ = &own;
  const std::size_t longest = longest_of(streams);
  block_bytes_ = pipeline_block_bytes(longest, kBlockBytes);
  const std::uint32_t blocks = peers_.size() == 1 ? 0 : block_count(longest, block_bytes_);
  start(first_block, blocks);
  // The part of `own` beyond the blocks.
  copy_through(own, {std::min(blocks * block_bytes_, own.size_bytes()), own.size_bytes()});
  return blocks;
}

void Exchange::stage(std::uint32_t block) {
  const ViewList& stream = (*streams_)[peers_.rank()];
  copy_in(stream, range_of(block, stream), staging_cell(peers_.rank(), block));
  // In an allgather these bytes were just staged, so they are in the cache.
  copy_through(*own_, range_of(block, *own_));
}

bool Exchange::wants(int rank, std::uint32_t block) const {
  const ViewList& stream = (*streams_)[rank];
  return stream.has_out(range_of(block, stream));
}

// Starts with the next rank, so that the ranks do not all read one cell at a time.
void Exchange::use(std::uint32_t block) {
  for (int step = 1; step < peers_.size(); ++step) {
    const int rank = (peers_.rank() + step) % peers_.size();
    const ViewList& stream = (*streams_)[rank];
    copy_out(stream, range_of(block, stream), staging_cell(rank, block));
  }
}

Range Exchange::range_of(std::uint32_t block, const ViewList& stream) const {
  return block_of(block, block_bytes_, stream.size_bytes());
}

}  // namespace hvd
