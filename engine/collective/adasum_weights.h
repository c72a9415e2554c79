// The weight of each rank's vector in an Adasum: a pure function of the vectors' dot products.
//
// Two vectors combine as
//   adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b,
// so orthogonal vectors add up and equal ones stay what they are. A factor is 1 where its norm is
// near zero: not above the rounding errors of the dot products it is made of.
//
// Ranks combine in a fixed binary tree (core/adasum_tree.h). Every intermediate result is a linear
// combination of the ranks' vectors, and so are its dot products one of theirs.
#pragma once

#include <cstddef>
#include <span>

#include "collective/views.h"

namespace hvd {

// `gram`: the dot products as in kernels/adasum.h, for weights.size() vectors. Writes the weights,
// by rank. Dot products that are infinite or NaN make them NaN.
void adasum_weights(std::span<const double> gram, std::span<double> weights);

// The weights of every view's vectors, times the factors of its spec, from the dot products of all
// views, one after the other. `ranks`: vectors of a view.
void weigh_views(const ViewList& views, std::size_t ranks, std::span<const double> grams,
                 std::span<double> weights);
// The views with weights, which weigh_views() writes later; `ranks`: as many for each view.
ViewList with_weights(const ViewList& views, std::size_t ranks, const double* weights);
// Dot products as a tensor to be summed over ranks in place.
View sum_view(std::span<double> grams);

}  // namespace hvd
