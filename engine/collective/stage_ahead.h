// The base of collectives without result cells: block b + 1 of this rank is staged before block b
// of the others is used, so a rank waits only when another is a whole block behind.
//
// Each block costs one synchronisation. A rank waits for another's block only when it wants
// something in it; it publishes every block all the same, because cells are reused by number.
#pragma once

#include <cstdint>

#include "collective/algorithm.h"

namespace hvd {

class StageAhead : public Algorithm {
 public:
  bool advance(PeerWait& blocked) override;

 protected:
  explicit StageAhead(Peers& peers) : peers_(peers) {}

  // Starts `blocks` blocks at block number `first_block`.
  void start(BlockNumber first_block, std::uint32_t blocks);

  std::byte* staging_cell(int rank, std::uint32_t block) const {
    return peers_.staging_cell(rank, first_block_ + block);
  }

  // Blocks staged plus blocks used: grows whenever advance() makes progress.
  std::uint32_t steps() const { return staged_ + used_; }
  bool has_used(std::uint32_t block) const { return block < used_; }

  // Whether this rank has what `block` needs; its staging cell is free.
  virtual bool make_ready(std::uint32_t /*block*/) { return true; }
  // Fills this rank's staging cell of `block`.
  virtual void stage(std::uint32_t block) = 0;
  // Whether use(block) reads the staging cell of `rank`, another rank.
  virtual bool wants(int rank, std::uint32_t block) const = 0;
  // Reads the staging cells of `block`.
  virtual void use(std::uint32_t block) = 0;

  Peers& peers_;

 private:
  bool may_stage(PeerWait& blocked) const;
  bool may_use(PeerWait& blocked) const;
  void stage_next();
  void use_next();

  BlockNumber first_block_ = 0;
  std::uint32_t blocks_ = 0;
  std::uint32_t staged_ = 0;
  std::uint32_t used_ = 0;
};

}  // namespace hvd
