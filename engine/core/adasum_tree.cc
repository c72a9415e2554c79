#include "core/adasum_tree.h"

#include <algorithm>
#include <bit>

namespace hvd {

AdasumTree adasum_tree(std::size_t size) {
  const std::size_t power = std::bit_floor(size);
  const std::size_t extras = size - power;
  // The place of a rank below the power of two. Its extra rank has the next place.
  const auto begin_of = [=](std::size_t rank) { return rank + std::min(rank, extras); };
  AdasumTree tree;
  const auto join = [&](std::size_t begin, std::size_t middle, std::size_t end) {
    tree.joins.push_back({.begin = static_cast<std::uint32_t>(begin),
                          .middle = static_cast<std::uint32_t>(middle),
                          .end = static_cast<std::uint32_t>(end)});
  };
  for (std::size_t rank = 0; rank < power; ++rank) {
    tree.order.push_back(rank);
    if (rank < extras) tree.order.push_back(power + rank);
  }
  for (std::size_t rank = 0; rank < extras; ++rank) {
    join(begin_of(rank), begin_of(rank) + 1, begin_of(rank) + 2);
  }
  for (std::size_t step = 1; step < power; step *= 2) {
    for (std::size_t rank = 0; rank < power; rank += 2 * step) {
      join(begin_of(rank), begin_of(rank + step), begin_of(rank + 2 * step));
    }
  }
  return tree;
}

}  // namespace hvd
