#include "collective/barrier.h"

namespace hvd {

std::uint32_t Barrier::begin(BlockNumber block) {
  block_ = block;
  has_arrived_ = false;
  return 1;
}

bool Barrier::advance(PeerWait& blocked) {
  if (!has_arrived_) {
    has_arrived_ = true;
    peers_.publish(Counter::kStaged, block_ + 1);
    peers_.publish(Counter::kReduced, block_ + 1);
  }
  if (!peers_.all_reached(Counter::kStaged, block_ + 1, blocked)) return false;
  peers_.publish(Counter::kFinished, block_ + 1);
  return true;
}

}  // namespace hvd
