// The first pass of Adasum: what every rank's share adds to the dot products of the ranks' tensors.
//
// Staged and cut as an allreduce in two steps, but nothing is written back. Bytes touched per rank
// for a stream of S bytes and n ranks: stages S (n-1)/n, reads S from n sources of S/n.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/allreduce.h"
#include "collective/stage_ahead.h"
#include "collective/views.h"

namespace hvd {

class PartialGrams final : public StageAhead {
 public:
  explicit PartialGrams(Peers& peers);

  // Adds to `grams` the Gram matrix (kernels/adasum.h) of each view, one after the other, as far as
  // this rank's shares go. All ranks see the same sizes. `views` and `grams` outlive the run. In a
  // world of one nothing is added. Returns how many block numbers it takes.
  std::uint32_t begin(const ViewList& views, double* grams, BlockNumber first_block);

 private:
  void stage(std::uint32_t block) override;
  bool wants(int rank, std::uint32_t block) const override;
  void use(std::uint32_t block) override;

  Range range_of(std::uint32_t block) const;
  Range own_share(std::uint32_t block) const;

  const ViewList* views_ = nullptr;
  double* grams_ = nullptr;
  AllreducePlan plan_;
  std::vector<const std::byte*> sources_;
};

}  // namespace hvd
