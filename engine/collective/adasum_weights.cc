#include "collective/adasum_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace hvd {
namespace {

// A squared norm this far below the terms that cancelled in it is noise.
constexpr double kNoise = 1e-12;

// A dot product of two combinations, and the size of the terms that it is the sum of.
struct Dot {
  double value = 0.0;
  double magnitude = 0.0;

  bool is_near_zero() const { return value == 0.0 || value < kNoise * magnitude; }
};

// The tree, with ranks in an order in which every subtree is contiguous.
class Tree {
 public:
  Tree(std::span<const double> gram, std::span<double> weights)
      : gram_(gram), weights_(weights), size_(weights.size()), order_(weights.size()) {
    const std::size_t power = std::bit_floor(size_);
    const std::size_t extras = size_ - power;
    for (std::size_t rank = 0; rank < power; ++rank) {
      order_[begin_of(rank)] = rank;
      if (rank < extras) order_[begin_of(rank) + 1] = power + rank;
    }
    for (std::size_t i = 0; i < size_; ++i) weights_[i] = 1.0;
  }

  void combine_all() {
    const std::size_t power = std::bit_floor(size_);
    for (std::size_t rank = 0; rank < size_ - power; ++rank) {
      combine(begin_of(rank), begin_of(rank) + 1, begin_of(rank) + 2);
    }
    for (std::size_t step = 1; step < power; step *= 2) {
      for (std::size_t rank = 0; rank < power; rank += 2 * step) {
        combine(begin_of(rank), begin_of(rank + step), begin_of(rank + 2 * step));
      }
    }
  }

 private:
  // Where rank `rank` below the power of two stands, its extra rank behind it.
  std::size_t begin_of(std::size_t rank) const {
    return rank + std::min(rank, size_ - std::bit_floor(size_));
  }

  // Combines the vector of the places [begin, middle) with that of [middle, end).
  void combine(std::size_t begin, std::size_t middle, std::size_t end) {
    const double dot = dot_of(begin, middle, middle, end).value;
    scale(begin, middle, dot);
    scale(middle, end, dot);
  }

  void scale(std::size_t begin, std::size_t end, double dot) {
    const Dot square = dot_of(begin, end, begin, end);
    if (square.is_near_zero()) return;
    const double factor = 1.0 - dot / (2.0 * square.value);
    for (std::size_t i = begin; i < end; ++i) weights_[order_[i]] *= factor;
  }

  Dot dot_of(std::size_t left, std::size_t left_end, std::size_t right,
             std::size_t right_end) const {
    Dot dot;
    for (std::size_t i = left; i < left_end; ++i) {
      for (std::size_t j = right; j < right_end; ++j) {
        const double term = weights_[order_[i]] * weights_[order_[j]] * entry(order_[i], order_[j]);
        dot.value += term;
        dot.magnitude += std::abs(term);
      }
    }
    return dot;
  }

  double entry(std::size_t i, std::size_t j) const {
    if (i > j) std::swap(i, j);
    return gram_[i * size_ - i * (i + 1) / 2 + j];
  }

  std::span<const double> gram_;
  std::span<double> weights_;
  std::size_t size_;
  std::vector<std::size_t> order_;
};

}  // namespace

void adasum_weights(std::span<const double> gram, std::span<double> weights) {
  Tree(gram, weights).combine_all();
}

}  // namespace hvd
