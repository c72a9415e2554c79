// Every rank owns a part of the result: rank q gets the reduction of all ranks' streams for q.
//
// A block holds one part of every owner's stream. A rank stages what the others own and reduces its
// own part from all ranks, in rank order: the bits are those of an allreduce. An absent rank (no
// `in`) stages zeros, also where it is the owner itself; an owner without `out` drops its result.
// Bytes touched per rank for S bytes in all streams of n ranks: stages S (n-1)/n, reads S from n
// sources of S/n, writes S/n.
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
  explicit ReduceScatter(Peers& peers);

  // `streams[q]` is what rank q will get: `in` is this rank's contribution, `out` only counts where
  // q is this rank, and must not overlap any `in` of another stream. All ranks see the same sizes.
  // `streams` outlives the run. Returns how many block numbers it takes.
  std::uint32_t begin(const std::vector<ViewList>& streams, BlockNumber first_block);

 private:
  void stage(std::uint32_t block) override;
  bool wants(int rank, std::uint32_t block) const override;
  void use(std::uint32_t block) override;

  void reduce_range(Range range, std::uint32_t block);
  Range range_of(int owner, std::uint32_t block) const;
  // Where the part of `owner` lies in the staging cell of `rank`.
  std::byte* part_of(int owner, int rank, std::uint32_t block) const;

  const std::vector<ViewList>* streams_ = nullptr;
  ReduceScatterPlan plan_;
  std::vector<const std::byte*> sources_;
};

}  // namespace hvd
