#include "collective/reduce_scatter.h"

#include <algorithm>

#include "collective/shares.h"

namespace hvd {

ReduceScatterPlan plan_reduce_scatter(std::size_t longest_bytes, int size, std::size_t cell_bytes) {
  if (longest_bytes == 0 || size == 1) return {};
  const std::size_t ranks = static_cast<std::size_t>(size);
  const std::size_t block_bytes = pipeline_block_bytes(longest_bytes * ranks, cell_bytes);
  const std::size_t fitting = block_bytes / ranks / kViewAlignment * kViewAlignment;
  const std::size_t part_bytes = std::max(fitting, kViewAlignment);
  return {.part_bytes = part_bytes, .blocks = block_count(longest_bytes, part_bytes)};
}

std::uint32_t ReduceScatter::begin(const std::vector<ViewList>& streams, BlockNumber first_block) {
  streams_ = &streams;
  const std::size_t longest = longest_of(streams);
  plan_ = plan_reduce_scatter(longest, peers_.size(), kBlockBytes);
  start(first_block, plan_.blocks);
  if (peers_.size() == 1) reduce_range({0, longest}, 0);
  return plan_.blocks;
}

void ReduceScatter::stage(std::uint32_t block) {
  for (int owner = 0; owner < peers_.size(); ++owner) {
    const ViewList& stream = (*streams_)[owner];
    if (owner == peers_.rank() && !stream.has_zeros()) continue;
    copy_in(stream, range_of(owner, block), staging_cell(peers_.rank(), block) + in_cell(owner));
  }
}

bool ReduceScatter::wants(int /*rank*/, std::uint32_t block) const {
  return (*streams_)[peers_.rank()].has_out(range_of(peers_.rank(), block));
}

void ReduceScatter::use(std::uint32_t block) {
  reduce_range(range_of(peers_.rank(), block), block);
}

void ReduceScatter::reduce_range(Range range, std::uint32_t block) {
  const ViewList& stream = (*streams_)[peers_.rank()];
  stream.for_each_piece(range, [&](const Piece& piece) {
    if (piece.view.out == nullptr) return;
    const std::size_t begin = in_cell(peers_.rank()) + (piece.stream - range.begin);
    reduce(piece.view.spec, sources(piece, block, begin), piece.out(), nullptr,
           piece.element_count());
  });
}

Range ReduceScatter::range_of(int owner, std::uint32_t block) const {
  return block_of(block, plan_.part_bytes, (*streams_)[owner].size_bytes());
}

}  // namespace hvd
