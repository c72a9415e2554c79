#include "collective/partial_grams.h"

#include "collective/shares.h"
#include "kernels/adasum.h"

namespace hvd {

PartialGrams::PartialGrams(Peers& peers) : StageAhead(peers), sources_(peers.size()) {}

std::uint32_t PartialGrams::begin(const ViewList& views, double* grams, BlockNumber first_block) {
  views_ = &views;
  grams_ = grams;
  plan_ = plan_allreduce(views.size_bytes(), peers_.size(), peers_.staging_cell_bytes());
  start(first_block, plan_.blocks);
  return plan_.blocks;
}

void PartialGrams::stage(std::uint32_t block) {
  stage_for_others(*views_, range_of(block), own_share(block), staging_cell(peers_.rank(), block));
}

bool PartialGrams::wants(int /*rank*/, std::uint32_t block) const {
  const Range own = own_share(block);
  return own.begin != own.end;
}

void PartialGrams::use(std::uint32_t block) {
  const std::size_t entries = gram_entries(sources_.size());
  const std::size_t origin = range_of(block).begin;
  views_->for_each_piece(own_share(block), [&](const View& view, std::size_t at, std::size_t stream,
                                               std::size_t length) {
    for (int rank = 0; rank < peers_.size(); ++rank) {
      const bool is_own = rank == peers_.rank() && view.in != nullptr;
      sources_[rank] = is_own ? view.in + at : staging_cell(rank, block) + (stream - origin);
    }
    const auto index = static_cast<std::size_t>(&view - views_->views().data());
    accumulate_gram(view.spec.dtype, sources_, length / size_of(view.spec.dtype),
                    grams_ + index * entries);
  });
}

Range PartialGrams::range_of(std::uint32_t block) const {
  return block_of(block, plan_.block_bytes, views_->size_bytes());
}

Range PartialGrams::own_share(std::uint32_t block) const {
  return share_of(peers_.rank(), peers_.size(), range_of(block));
}

}  // namespace hvd
