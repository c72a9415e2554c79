// All ranks wait for each other and move nothing. It follows a bucket in which some rank takes part
// without a tensor, so that the other ranks do not run ahead of it.
#pragma once

#include "collective/algorithm.h"

namespace hvd {

class Barrier final : public Algorithm {
 public:
  explicit Barrier(Peers& peers) : peers_(peers) {}

  // Returns how many block numbers it takes.
  std::uint32_t begin(BlockNumber block);
  bool advance(PeerWait& blocked) override;

 private:
  Peers& peers_;
  BlockNumber block_ = 0;
  bool has_arrived_ = false;
};

}  // namespace hvd
