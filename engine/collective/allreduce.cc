#include "collective/allreduce.h"

#include <algorithm>

#include "collective/shares.h"

namespace hvd {

AllreducePlan plan_allreduce(std::size_t stream_bytes, int size, std::size_t cell_bytes,
                             const AllreduceCut& cut) {
  if (stream_bytes == 0 || size == 1) return {};
  const std::size_t one_step_limit =
      std::min(cut.small_bytes() / static_cast<std::size_t>(size), cell_bytes);
  if (stream_bytes <= one_step_limit) {
    return {.one_step = true, .block_bytes = stream_bytes, .blocks = 1};
  }
  const std::size_t block_bytes =
      pipeline_block_bytes(stream_bytes, std::min(cut.block_bytes(), cell_bytes));
  return {.one_step = false,
          .block_bytes = block_bytes,
          .blocks = block_count(stream_bytes, block_bytes)};
}

Allreduce::Allreduce(Peers& peers) : peers_(peers), sources_(peers.size()) {}

std::uint32_t Allreduce::begin(const ViewList& views, BlockNumber first_block,
                               const AllreduceCut& cut) {
  views_ = &views;
  first_block_ = first_block;
  plan_ = plan_allreduce(views.size_bytes(), peers_.size(), peers_.staging_cell_bytes(), cut);
  phase_ = Phase::kStage;
  block_ = plan_.one_step ? 0 : -1;
  return plan_.blocks;
}

bool Allreduce::advance(PeerWait& blocked) {
  if (plan_.one_step) return advance_one_step(blocked);
  const auto blocks = static_cast<std::int64_t>(plan_.blocks);
  for (; block_ <= blocks; ++block_, phase_ = Phase::kStage) {
    if (phase_ == Phase::kStage) {
      if (block_ + 1 < blocks) {
        if (!may_stage(blocked)) return false;
        stage(block_ + 1);
      }
      phase_ = Phase::kReduce;
    }
    if (phase_ == Phase::kReduce) {
      if (block_ >= 0 && block_ < blocks) {
        if (!may_reduce(blocked)) return false;
        reduce_own_share(block_);
      }
      phase_ = Phase::kCopy;
    }
    if (block_ >= 1) {
      if (!peers_.all_reached(Counter::kReduced, number(block_), blocked)) return false;
      copy_shares(block_ - 1);
    }
  }
  return true;
}

bool Allreduce::advance_one_step(PeerWait& blocked) {
  if (plan_.blocks == 0) {
    if (peers_.size() == 1) reduce_everything();
    return true;
  }
  if (phase_ == Phase::kStage) {
    if (!peers_.all_reached(Counter::kReduced, number(0) - (kCells - 1), blocked)) return false;
    copy_in(*views_, range_of(0), peers_.staging_cell(peers_.rank(), number(0)));
    peers_.publish(Counter::kStaged, number(0) + 1);
    phase_ = Phase::kReduce;
  }
  if (!peers_.all_reached(Counter::kStaged, number(0) + 1, blocked)) return false;
  reduce_everything();
  peers_.publish(Counter::kReduced, number(0) + 1);
  peers_.publish(Counter::kFinished, number(0) + 1);
  return true;
}

bool Allreduce::may_stage(PeerWait& blocked) const {
  const BlockNumber oldest = number(block_ + 1) - (kCells - 1);
  return peers_.all_reached(Counter::kReduced, oldest, blocked);
}

bool Allreduce::may_reduce(PeerWait& blocked) const {
  return peers_.all_reached(Counter::kStaged, number(block_) + 1, blocked) &&
         peers_.all_reached(Counter::kFinished, number(block_) - (kCells - 1), blocked);
}

void Allreduce::stage(std::int64_t block) {
  const Range range = range_of(block);
  const Range own = share_of(peers_.rank(), peers_.size(), range);
  stage_for_others(*views_, range, own, peers_.staging_cell(peers_.rank(), number(block)));
  peers_.publish(Counter::kStaged, number(block) + 1);
}

void Allreduce::reduce_own_share(std::int64_t block) {
  const Range range = range_of(block);
  const Range own = share_of(peers_.rank(), peers_.size(), range);
  std::byte* result = peers_.result_cell(peers_.rank(), number(block));
  views_->for_each_piece(own, [&](const Piece& piece) {
    gather_sources(piece, number(block), piece.stream - range.begin);
    std::byte* shared = result + (piece.stream - own.begin);
    const bool is_dropped = piece.view.out == nullptr;
    reduce(piece.view.spec, sources_, is_dropped ? shared : piece.out(),
           is_dropped ? nullptr : shared, piece.element_count());
  });
  peers_.publish(Counter::kReduced, number(block) + 1);
}

void Allreduce::reduce_everything() {
  views_->for_each_piece({0, views_->size_bytes()}, [&](const Piece& piece) {
    if (piece.view.out == nullptr) return;
    gather_sources(piece, number(0), piece.stream);
    reduce(piece.view.spec, sources_, piece.out(), nullptr, piece.element_count());
  });
}

void Allreduce::gather_sources(const Piece& piece, BlockNumber number, std::size_t in_cell) {
  for (int rank = 0; rank < peers_.size(); ++rank) {
    const bool is_own = rank == peers_.rank() && piece.view.in != nullptr;
    sources_[rank] = is_own ? piece.in() : peers_.staging_cell(rank, number) + in_cell;
  }
}

void Allreduce::copy_shares(std::int64_t block) {
  const Range range = range_of(block);
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank == peers_.rank()) continue;
    copy_out(*views_, share_of(rank, peers_.size(), range),
             peers_.result_cell(rank, number(block)));
  }
  peers_.publish(Counter::kFinished, number(block) + 1);
}

Range Allreduce::range_of(std::int64_t block) const {
  return block_of(static_cast<std::uint64_t>(block), plan_.block_bytes, views_->size_bytes());
}

}  // namespace hvd
