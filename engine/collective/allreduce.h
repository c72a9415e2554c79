// Allreduce over shared memory.
//
// Words: the tensors are one stream (ViewList), which is cut into blocks. A block is cut into one
// share per rank. Small streams take one step: every rank stages all its data, then reduces
// everything itself. Larger streams take two steps: a rank stages the shares of the others and
// reduces its own share from all ranks into its tensor and its result cell. Then it copies the
// others' shares from their result cells. Blocks are pipelined: while block b is reduced, b + 1 is
// already staged and b - 1 is copied out. So a rank waits only when another rank is a whole block
// behind.
//
// An absent rank has no `in` and no `out`. It stages zeros, also for its own share. It reduces its
// share into its result cell only; in one step it has nothing to reduce. A world of one has no
// absent rank that wants a result.
//
// Both ways sum every element in rank order, so they give the same bits. Bytes touched per rank for
// a stream of S bytes and n ranks: reads S of the tensor, stages S (n-1)/n, reduces S, copies S
// (n-1)/n.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/algorithm.h"
#include "collective/views.h"
#include "core/tuning.h"

namespace hvd {

struct AllreducePlan {
  bool one_step = true;
  std::size_t block_bytes = 0;
  std::uint32_t blocks = 0;
};

// The same on all ranks, since all arguments are.
AllreducePlan plan_allreduce(std::size_t stream_bytes, int size, std::size_t cell_bytes,
                             const AllreduceCut& cut = {});

class Allreduce final : public Algorithm {
 public:
  explicit Allreduce(Peers& peers);

  // Starts on `views`, which outlives the run, at block number `first_block`. Returns how many
  // block numbers it takes.
  std::uint32_t begin(const ViewList& views, BlockNumber first_block, const AllreduceCut& cut = {});
  bool advance(PeerWait& blocked) override;

 private:
  enum class Phase { kStage, kReduce, kCopy };

  bool advance_one_step(PeerWait& blocked);
  bool may_stage(PeerWait& blocked) const;
  bool may_reduce(PeerWait& blocked) const;

  void stage(std::int64_t block);
  void reduce_own_share(std::int64_t block);
  void reduce_everything();
  void copy_shares(std::int64_t block);
  void gather_sources(const Piece& piece, BlockNumber number, std::size_t in_cell);

  Range range_of(std::int64_t block) const;
  BlockNumber number(std::int64_t block) const {
    return first_block_ + static_cast<BlockNumber>(block);
  }

  Peers& peers_;
  std::vector<const std::byte*> sources_;
  const ViewList* views_ = nullptr;
  AllreducePlan plan_;
  BlockNumber first_block_ = 0;
  std::int64_t block_ = 0;  // the block being reduced; -1 while the first is staged
  Phase phase_ = Phase::kStage;
};

}  // namespace hvd
