// Every rank owns a part of the result: rank q gets the reduction of all ranks' streams for q.
//
// A block holds one part of every owner's stream. A rank stages the parts of the others and reduces
// its own part from all ranks, in rank order: the bits are those of an allreduce. An absent rank
// (no `in`) stages zeros, also for its own part. An owner without `out` drops its result. Bytes
// touched per rank for S bytes in all streams of n ranks: stages S (n-1)/n, reads S from n sources
// of S/n, writes S/n.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/stage_ahead.h"
#include "collective/views.h"

namespace hvd {

struct ReduceScatterPlan {
  std::size_t part_bytes = 0;  // of one owner's stream, in one block
  std::uint32_t blocks = 0;
};

// `longest_bytes`: of the owners' streams. The same on all ranks.
ReduceScatterPlan plan_reduce_scatter(std::size_t longest_bytes, int size, std::size_t cell_bytes);

class ReduceScatter final : public StageAhead {
 public:
  explicit ReduceScatter(Peers& peers) : StageAhead(peers) {}

  // `streams[q]`: for the part of rank q. `in`: this rank's contribution. `out`: used only if q is
  // this rank; must not overlap any `in` of another stream. All ranks see the same sizes. `streams`
  // outlives the run. Returns how many block numbers it takes.
  std::uint32_t begin(const std::vector<ViewList>& streams, BlockNumber first_block);

 private:
  void stage(std::uint32_t block) override;
  bool wants(int rank, std::uint32_t block) const override;
  void use(std::uint32_t block) override;

  void reduce_range(Range range, std::uint32_t block);
  Range range_of(int owner, std::uint32_t block) const;
  // Where the part of `owner` lies in a staging cell.
  std::size_t in_cell(int owner) const {
    return static_cast<std::size_t>(owner) * plan_.part_bytes;
  }

  const std::vector<ViewList>* streams_ = nullptr;
  ReduceScatterPlan plan_;
};

}  // namespace hvd
