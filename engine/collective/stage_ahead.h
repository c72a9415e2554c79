// The base of collectives without result cells. Block b + 1 of this rank is staged before block b
// of the others is used, so a rank waits only when another rank is a whole block behind.
//
// Each block costs one synchronisation. A rank waits for another rank's block only if it needs data
// from the block. It publishes every block, even one that no rank needs, because cells are reused
// by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/algorithm.h"
#include "collective/host_map.h"
#include "collective/links.h"
#include "collective/views.h"

namespace hvd {

class StageAhead : public Algorithm {
 public:
  bool advance(PeerWait& blocked) override;

 protected:
  explicit StageAhead(Peers& peers)
      : peers_(peers), sources_(static_cast<std::size_t>(peers.size())) {}

  // Starts `blocks` blocks at block number `first_block`.
  void start(BlockNumber first_block, std::uint32_t blocks);

  std::byte* staging_cell(int rank, std::uint32_t block) const {
    return peers_.staging_cell(rank, first_block_ + block);
  }

  // The address of a piece of `block` on every rank. This rank's is in its view, if that gives
  // bytes; all others are at `in_cell` in the staging cells.
  std::span<const std::byte* const> sources(const Piece& piece, std::uint32_t block,
                                            std::size_t in_cell);

  // Blocks staged plus blocks used. Grows whenever advance() makes progress.
  std::uint32_t steps() const { return staged_ + used_; }
  bool has_used(std::uint32_t block) const { return block < used_; }

  // Whether this rank has the data for `block`. Its staging cell is free.
  virtual bool make_ready(std::uint32_t /*block*/) { return true; }
  // Fills this rank's staging cell of `block`.
  virtual void stage(std::uint32_t block) = 0;
  // Whether use(block) reads the staging cell of `rank`, another rank.
  virtual bool wants(int /*rank*/, std::uint32_t /*block*/) const { return true; }
  // Reads the staging cells of `block`.
  virtual void use(std::uint32_t block) = 0;

  Peers& peers_;

 private:
  bool may_stage(PeerWait& blocked) const;
  bool may_use(PeerWait& blocked) const;
  void stage_next();
  void use_next();

  std::vector<const std::byte*> sources_;
  BlockNumber first_block_ = 0;
  std::uint32_t blocks_ = 0;
  std::uint32_t staged_ = 0;
  std::uint32_t used_ = 0;
};

// The base of collectives between hosts. It works in turn on stages in the shared memory of each
// host (StageAhead) and on streams of bytes on the links between hosts.
//
// A stage may need bytes from a link first (make_ready), and using it may give bytes to a link. All
// hosts have the same number of stages in the same order. On a host with one member stages cost
// nothing.
class ClusterStages : public StageAhead {
 public:
  bool advance(PeerWait& blocked) final;

 protected:
  ClusterStages(Peers& peers, const HostMap& map, Links& links)
      : StageAhead(peers), map_(map), links_(links) {}

  // Writes the sum of a piece of `block` over the ranks of this host to `to`.
  void sum_on_host(const Piece& piece, std::uint32_t block, std::size_t in_cell, std::byte* to);
  // Posts and computes as much as possible; true when there was anything to do.
  virtual bool exchange() { return false; }
  // Whether everything is posted.
  virtual bool has_posted_all() const { return true; }

  const HostMap& map_;
  Links& links_;
};

}  // namespace hvd
