// The order in which the vectors of n ranks combine in an Adasum. Pure.
//
// A fixed binary tree. p is the largest power of two that is at most n. First, rank p + r combines
// with rank r, for r < n - p. Then neighbours combine, (0,1), (2,3) ..., then pairs of pairs, and
// so on up to all ranks.
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
