#include "collective/adasum_weights.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "core/adasum_tree.h"
#include "kernels/adasum.h"

namespace hvd {
namespace {

// A squared norm that is smaller than its terms by this factor is noise: the terms cancelled.
constexpr double kNoise = 1e-12;

// A dot product of two combinations, and the sum of the absolute values of its terms.
struct Dot {
  double value = 0.0;
  double magnitude = 0.0;

  bool is_near_zero() const { return value == 0.0 || value < kNoise * magnitude; }
};

// Weights by rank, while the tree combines them.
class Weights {
 public:
  Weights(std::span<const double> gram, std::span<double> weights)
      : gram_(gram), weights_(weights), size_(weights.size()), tree_(adasum_tree(size_)) {
    std::ranges::fill(weights_, 1.0);
  }

  void combine_all() {
    for (const AdasumTree::Join& join : tree_.joins) combine(join.begin, join.middle, join.end);
  }

 private:
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
    for (std::size_t i = begin; i < end; ++i) weights_[tree_.order[i]] *= factor;
  }

  Dot dot_of(std::size_t left, std::size_t left_end, std::size_t right,
             std::size_t right_end) const {
    Dot dot;
    for (std::size_t i = left; i < left_end; ++i) {
      for (std::size_t j = right; j < right_end; ++j) {
        const double term = weights_[tree_.order[i]] * weights_[tree_.order[j]] *
                            entry(tree_.order[i], tree_.order[j]);
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
  const AdasumTree tree_;
};

}  // namespace

void adasum_weights(std::span<const double> gram, std::span<double> weights) {
  Weights(gram, weights).combine_all();
}

void weigh_views(const ViewList& views, std::size_t ranks, std::span<const double> grams,
                 std::span<double> weights) {
  const std::size_t entries = gram_entries(ranks);
  for (std::size_t i = 0; i < views.views().size(); ++i) {
    const std::span<double> own = weights.subspan(i * ranks, ranks);
    adasum_weights(grams.subspan(i * entries, entries), own);
    const ReduceSpec& spec = views.views()[i].spec;
    for (double& weight : own) weight *= spec.prescale * spec.postscale;
  }
}

ViewList with_weights(const ViewList& views, std::size_t ranks, const double* weights) {
  ViewList result;
  for (View view : views.views()) {
    view.spec.weights = weights + result.views().size() * ranks;
    result.append(view);
  }
  return result;
}

View sum_view(std::span<double> grams) {
  auto* const bytes = reinterpret_cast<std::byte*>(grams.data());
  return {.in = bytes,
          .out = bytes,
          .size_bytes = grams.size_bytes(),
          .spec = {.dtype = Dtype::kFloat64, .op = ReduceOp::kSum}};
}

void add_gram(const ViewList& views, const Piece& piece, std::span<const std::byte* const> sources,
              double* grams) {
  const auto index = static_cast<std::size_t>(&piece.view - views.views().data());
  accumulate_gram(piece.view.spec.dtype, sources, piece.element_count(),
                  grams + index * gram_entries(sources.size()));
}

ViewList tiled(const ViewList& views) {
  ViewList result;
  for (const View& view : views.views()) result.append(view, kTileBytes);
  return result;
}

}  // namespace hvd
