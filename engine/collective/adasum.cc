#include "collective/adasum.h"

#include "collective/adasum_weights.h"
#include "kernels/adasum.h"

namespace hvd {

Adasum::Adasum(Peers& peers) : peers_(peers), partial_grams_(peers), allreduce_(peers) {}

std::uint32_t Adasum::begin(const ViewList& views, BlockNumber first_block) {
  const std::size_t ranks = static_cast<std::size_t>(peers_.size());
  const std::size_t count = views.views().size();
  grams_.assign(count * gram_entries(ranks), 0.0);
  weights_.assign(count * ranks, 1.0);
  weighted_ = with_weights(views, ranks, weights_.data());
  gram_view_.clear();
  gram_view_.append(sum_view(grams_));
  phase_ = Phase::kDots;
  next_block_ = first_block + partial_grams_.begin(weighted_, grams_.data(), first_block);
  const std::size_t cell_bytes = peers_.staging_cell_bytes();
  const auto blocks = [&](const ViewList& list) {
    return plan_allreduce(list.size_bytes(), peers_.size(), cell_bytes).blocks;
  };
  return static_cast<std::uint32_t>(next_block_ - first_block) + blocks(gram_view_) +
         blocks(weighted_);
}

bool Adasum::advance(PeerWait& blocked) {
  if (phase_ == Phase::kDots) {
    if (!partial_grams_.advance(blocked)) return false;
    begin_sum();
  }
  if (phase_ == Phase::kSum) {
    if (!allreduce_.advance(blocked)) return false;
    begin_apply();
  }
  return allreduce_.advance(blocked);
}

void Adasum::begin_sum() {
  next_block_ += allreduce_.begin(gram_view_, next_block_);
  phase_ = Phase::kSum;
}

void Adasum::begin_apply() {
  weigh_views(weighted_, static_cast<std::size_t>(peers_.size()), grams_, weights_);
  next_block_ += allreduce_.begin(weighted_, next_block_);
  phase_ = Phase::kApply;
}

}  // namespace hvd
