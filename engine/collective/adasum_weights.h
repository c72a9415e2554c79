// The weight of each rank's vector in an Adasum: a pure function of the vectors' dot products.
//
// Two vectors combine as
//   adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, so orthogonal vectors add up, and
// two equal vectors give the same vector. A factor is 1 if its norm is near zero: not above the
// rounding errors of the dot products that it is made of.
//
// Ranks combine in a fixed binary tree (core/adasum_tree.h). Every intermediate result is a linear
// combination of the ranks' vectors. So its dot products are linear combinations of theirs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "collective/views.h"

namespace hvd {

// `gram`: the dot products as in kernels/adasum.h, for weights.size() vectors. Writes the weights,
// by rank. Dot products that are infinite or NaN make them NaN.
void adasum_weights(std::span<const double> gram, std::span<double> weights);

// For each view: the weights of its vectors, times the factors of its spec. `grams`: the dot
// products of all views, one after the other. `ranks`: vectors of a view.
void weigh_views(const ViewList& views, std::size_t ranks, std::span<const double> grams,
                 std::span<double> weights);
// The views with weights, `ranks` of them for each view. weigh_views() writes them later.
ViewList with_weights(const ViewList& views, std::size_t ranks, const double* weights);
// Dot products as a tensor to be summed over ranks in place.
View sum_view(std::span<double> grams);

// Adds the dot products of a piece to those of its view. `sources`: the piece on every rank.
void add_gram(const ViewList& views, const Piece& piece, std::span<const std::byte* const> sources,
              double* grams);

// For their dot products tensors are cut into tiles, which the ranks take in turn.
inline constexpr std::size_t kTileBytes = 4096;
// In the stream of the result, views begin at multiples of a tile, so no such multiple cuts a tile.
ViewList tiled(const ViewList& views);
// Calls use(tile, the rank that takes it) for the tiles in `range`, which begins and ends at
// multiples of a tile.
template <typename Use>
void for_each_tile(const ViewList& tiled, Range range, std::size_t ranks, Use&& use) {
  tiled.for_each_piece(range, [&](const Piece& piece) {
    for (std::size_t done = 0; done < piece.size_bytes; done += kTileBytes) {
      const std::size_t at = piece.at + done;
      use(Piece{piece.view, at, piece.stream + done, std::min(kTileBytes, piece.size_bytes - done)},
          static_cast<int>(at / kTileBytes % ranks));
    }
  });
}

}  // namespace hvd
