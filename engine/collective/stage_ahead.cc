#include "collective/stage_ahead.h"

#include "collective/two_levels.h"

namespace hvd {

void StageAhead::start(BlockNumber first_block, std::uint32_t blocks) {
  first_block_ = first_block;
  blocks_ = blocks;
  staged_ = 0;
  used_ = 0;
}

std::span<const std::byte* const> StageAhead::sources(const Piece& piece, std::uint32_t block,
                                                      std::size_t in_cell) {
  for (int rank = 0; rank < peers_.size(); ++rank) {
    const bool is_own = rank == peers_.rank() && piece.view.in != nullptr;
    sources_[rank] = is_own ? piece.in() : staging_cell(rank, block) + in_cell;
  }
  return sources_;
}

bool StageAhead::advance(PeerWait& blocked) {
  for (; used_ < blocks_; use_next()) {
    blocked = {};
    while (staged_ < blocks_ && staged_ <= used_ + 1 && may_stage(blocked) && make_ready(staged_)) {
      stage_next();
    }
    if (staged_ == used_ || !may_use(blocked)) return false;
  }
  return true;
}

void StageAhead::stage_next() {
  stage(staged_++);
  peers_.publish(Counter::kStaged, first_block_ + staged_);
}

void StageAhead::use_next() {
  use(used_++);
  peers_.publish(Counter::kReduced, first_block_ + used_);
  peers_.publish(Counter::kFinished, first_block_ + used_);
}

bool StageAhead::may_stage(PeerWait& blocked) const {
  const BlockNumber oldest = first_block_ + staged_ - (kCells - 1);
  return peers_.all_reached(Counter::kReduced, oldest, blocked);
}

bool StageAhead::may_use(PeerWait& blocked) const {
  const auto target = static_cast<std::uint32_t>(first_block_ + used_ + 1);
  for (int rank = 0; rank < peers_.size(); ++rank) {
    const PeerWait wait{.rank = rank, .counter = Counter::kStaged, .target = target};
    if (rank == peers_.rank() || peers_.reached(wait) || !wants(rank, used_)) continue;
    blocked = wait;
    return false;
  }
  return true;
}

void ClusterStages::sum_on_host(const Piece& piece, std::uint32_t block, std::size_t in_cell,
                                std::byte* to) {
  if (peers_.size() == 1 && piece.view.in == nullptr) return piece.copy_to(to);
  reduce(first_level(piece.view.spec), sources(piece, block, in_cell), to, nullptr,
         piece.element_count());
}

bool ClusterStages::advance(PeerWait& blocked) {
  for (;;) {
    blocked = {};
    const std::uint32_t steps_before = steps();
    const bool has_used_all = StageAhead::advance(blocked);
    bool has_moved = exchange();
    has_moved |= links_.pump();
    if (has_used_all && has_posted_all() && links_.is_idle()) return true;
    if (has_moved || steps() != steps_before) continue;
    blocked.remote = links_.awaited();
    return false;
  }
}

}  // namespace hvd
