// The first pass of Adasum: each rank adds up the dot products of its part of the ranks' tensors.
//
// A tensor is cut into tiles, which the ranks take in turn; in the stream tensors begin at
// multiples of a tile, so no block cuts one. That makes the order of every sum depend on the tensor
// and the number of ranks alone, never on the tensor's place in the bucket. Bytes touched per rank
// for S bytes and n ranks: stages S (n-1)/n, reads S from n sources of S/n.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/stage_ahead.h"
#include "collective/views.h"

namespace hvd {

class PartialGrams final : public StageAhead {
 public:
  explicit PartialGrams(Peers& peers);

  // Adds to `grams` the Gram matrix (kernels/adasum.h) of each view, one after the other, as far as
  // this rank's tiles go. All ranks see the same sizes. What the views refer to and `grams` outlive
  // the run. In a world of one nothing is added. Returns how many block numbers it takes.
  std::uint32_t begin(const ViewList& views, double* grams, BlockNumber first_block);

 private:
  void stage(std::uint32_t block) override;
  bool wants(int rank, std::uint32_t block) const override;
  void use(std::uint32_t block) override;

  template <typename Use>
  void for_each_tile(std::uint32_t block, Use&& use) const;
  void add_tile(const View& view, std::size_t at, std::size_t in_cell, std::size_t length,
                std::uint32_t block);

  ViewList tiled_;
  double* grams_ = nullptr;
  std::size_t block_bytes_ = 0;
  std::vector<const std::byte*> sources_;
};

}  // namespace hvd
