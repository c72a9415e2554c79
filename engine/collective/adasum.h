// Adasum over shared memory, for any number of ranks: combines the ranks' tensors, each tensor on
// its own, along a fixed tree (collective/adasum_weights.h).
//
// The result is a linear combination of the ranks' tensors whose weights follow from their dot
// products. So: one pass adds up the dot products over every rank's shares, a small allreduce sums
// them over the ranks, every rank computes the weights for itself from the same bits, and an
// allreduce with a weighted sum in place of the sum gives the result, bitwise equal on all ranks,
// wherever the tensor stands in a bucket. An absent rank is a zero vector. Bytes touched per rank:
// twice those of an allreduce, less one copy out, and n (n+1)/2 doubles per tensor for n ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/allreduce.h"
#include "collective/partial_grams.h"
#include "collective/views.h"

namespace hvd {

class Adasum final : public Algorithm {
 public:
  explicit Adasum(Peers& peers);

  // Starts on `views`, floating dtypes all, which outlive the run. The factors of their specs scale
  // the result. Returns how many block numbers it takes.
  std::uint32_t begin(const ViewList& views, BlockNumber first_block);
  bool advance(PeerWait& blocked) override;

 private:
  enum class Phase { kDots, kSum, kApply };

  void begin_sum();
  void begin_apply();

  Peers& peers_;
  PartialGrams partial_grams_;
  Allreduce allreduce_;
  ViewList weighted_;            // the caller's views with weights
  ViewList gram_view_;           // grams_, to be summed over the ranks
  std::vector<double> grams_;    // by view
  std::vector<double> weights_;  // by view, by rank
  BlockNumber next_block_ = 0;
  Phase phase_ = Phase::kDots;
};

}  // namespace hvd
