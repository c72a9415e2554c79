// Adasum over shared memory, for any number of ranks. It combines the ranks' tensors along a fixed
// tree (collective/adasum_weights.h), each tensor by itself.
//
// The result is a linear combination of the ranks' tensors. The weights follow from the dot
// products of the tensors. First each rank adds up the dot products over its share. A small
// allreduce sums them over the ranks. Every rank computes the weights from the same bits. Then an
// allreduce with a weighted sum gives the result. It is bitwise equal on all ranks, for any place
// in a bucket. An absent rank is a zero vector. Bytes touched per rank: twice those of an
// allreduce, without one copy out, and n (n+1)/2 doubles per tensor for n ranks.
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

  // Starts on `views`, which outlive the run. All have floating dtypes. The factors of their specs
  // scale the result. Returns how many block numbers it takes.
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
