#include "collective/partial_grams.h"

#include "collective/adasum_weights.h"
#include "collective/shares.h"

namespace hvd {

std::uint32_t PartialGrams::begin(const ViewList& views, double* grams, BlockNumber first_block) {
  tiled_ = tiled(views);
  grams_ = grams;
  const std::size_t wanted = pipeline_block_bytes(tiled_.size_bytes(), kBlockBytes);
  block_bytes_ = (wanted + kTileBytes - 1) / kTileBytes * kTileBytes;
  const std::uint32_t blocks =
      peers_.size() == 1 ? 0 : block_count(tiled_.size_bytes(), block_bytes_);
  start(first_block, blocks);
  return blocks;
}

void PartialGrams::stage(std::uint32_t block) {
  std::byte* const cell = staging_cell(peers_.rank(), block);
  const Range range = range_of(block);
  for_each_tile(tiled_, range, peers_.size(), [&](const Piece& tile, int turn) {
    const bool is_read_here = turn == peers_.rank() && tile.view.in != nullptr;
    if (!is_read_here) tile.copy_to(cell + (tile.stream - range.begin));
  });
}

void PartialGrams::use(std::uint32_t block) {
  const Range range = range_of(block);
  for_each_tile(tiled_, range, peers_.size(), [&](const Piece& tile, int turn) {
    if (turn != peers_.rank()) return;
    add_gram(tiled_, tile, sources(tile, block, tile.stream - range.begin), grams_);
  });
}

Range PartialGrams::range_of(std::uint32_t block) const {
  return block_of(block, block_bytes_, tiled_.size_bytes());
}

}  // namespace hvd
