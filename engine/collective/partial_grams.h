// The first pass of Adasum: each rank adds up the dot products of its part of the ranks' tensors.
//
// A tensor is cut into tiles, which the ranks take in turn. In the stream tensors begin at
// multiples of a tile, so no block cuts a tile. So the order of every sum depends on the tensor and
// the number of ranks only, never on the tensor's place in the bucket. Bytes touched per rank for S
// bytes and n ranks: stages S (n-1)/n, reads S from n sources of S/n.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/stage_ahead.h"
#include "collective/views.h"

namespace hvd {

class PartialGrams final : public StageAhead {
 public:
  explicit PartialGrams(Peers& peers) : StageAhead(peers) {}

  // Adds this rank's tiles to the Gram matrices (kernels/adasum.h) of the views, which lie in
  // `grams` one after the other. All ranks see the same sizes. The memory of the views and `grams`
  // outlive the run. In a world of one nothing is added. Returns how many block numbers it takes.
  std::uint32_t begin(const ViewList& views, double* grams, BlockNumber first_block);

 private:
  void stage(std::uint32_t block) override;
  void use(std::uint32_t block) override;

  Range range_of(std::uint32_t block) const;

  ViewList tiled_;
  double* grams_ = nullptr;
  std::size_t block_bytes_ = 0;
};

}  // namespace hvd
