#include "collective/partial_grams.h"

#include <algorithm>
#include <cstring>

#include "collective/shares.h"
#include "kernels/adasum.h"

namespace hvd {

namespace {

constexpr std::size_t kGramTileBytes = 4096;

}  // namespace

PartialGrams::PartialGrams(Peers& peers) : StageAhead(peers), sources_(peers.size()) {}

std::uint32_t PartialGrams::begin(const ViewList& views, double* grams, BlockNumber first_block) {
  tiled_.clear();
  for (const View& view : views.views()) tiled_.append(view, kGramTileBytes);
  grams_ = grams;
  const std::size_t wanted = pipeline_block_bytes(tiled_.size_bytes(), kBlockBytes);
  block_bytes_ = (wanted + kGramTileBytes - 1) / kGramTileBytes * kGramTileBytes;
  const std::uint32_t blocks =
      peers_.size() == 1 ? 0 : block_count(tiled_.size_bytes(), block_bytes_);
  start(first_block, blocks);
  return blocks;
}

// Calls use(view, offset in the view, offset in the block, length, rank whose turn it is).
template <typename Use>
void PartialGrams::for_each_tile(std::uint32_t block, Use&& use) const {
  const Range range = block_of(block, block_bytes_, tiled_.size_bytes());
  const auto size = static_cast<std::size_t>(peers_.size());
  tiled_.for_each_piece(
      range, [&](const View& view, std::size_t at, std::size_t stream, std::size_t length) {
        for (std::size_t done = 0; done < length; done += kGramTileBytes) {
          const std::size_t turn = (at + done) / kGramTileBytes % size;
          use(view, at + done, stream + done - range.begin, std::min(kGramTileBytes, length - done),
              static_cast<int>(turn));
        }
      });
}

void PartialGrams::stage(std::uint32_t block) {
  std::byte* const cell = staging_cell(peers_.rank(), block);
  for_each_tile(block, [&](const View& view, std::size_t at, std::size_t in_cell,
                           std::size_t length, int turn) {
    if (view.in == nullptr) {
      std::memset(cell + in_cell, 0, length);
    } else if (turn != peers_.rank()) {
      std::memcpy(cell + in_cell, view.in + at, length);
    }
  });
}

bool PartialGrams::wants(int /*rank*/, std::uint32_t /*block*/) const { return true; }

void PartialGrams::use(std::uint32_t block) {
  for_each_tile(block, [&](const View& view, std::size_t at, std::size_t in_cell,
                           std::size_t length, int turn) {
    if (turn == peers_.rank()) add_tile(view, at, in_cell, length, block);
  });
}

void PartialGrams::add_tile(const View& view, std::size_t at, std::size_t in_cell,
                            std::size_t length, std::uint32_t block) {
  for (int rank = 0; rank < peers_.size(); ++rank) {
    const bool is_own = rank == peers_.rank() && view.in != nullptr;
    sources_[rank] = is_own ? view.in + at : staging_cell(rank, block) + in_cell;
  }
  const auto index = static_cast<std::size_t>(&view - tiled_.views().data());
  accumulate_gram(view.spec.dtype, sources_, length / size_of(view.spec.dtype),
                  grams_ + index * gram_entries(sources_.size()));
}

}  // namespace hvd
