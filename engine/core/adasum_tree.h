// The order in which the vectors of n ranks combine in an Adasum. Pure.
//
// A fixed binary tree. With p the largest power of two among n ranks, first rank p + r folds into
// rank r, for r < n - p; then neighbours (0,1), (2,3) ..., then pairs of pairs, up to all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {

struct AdasumTree {
  // The vectors of the places [begin, middle) with those of [middle, end).
  struct Join {
    std::uint32_t begin;
    std::uint32_t middle;
    std::uint32_t end;
  };

  std::vector<std::size_t> order;  // the rank at each place; every subtree is contiguous
  std::vector<Join> joins;         // in this order; one less than ranks
};

AdasumTree adasum_tree(std::size_t size);

}  // namespace hvd
