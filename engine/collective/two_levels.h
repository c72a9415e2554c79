// A reduction in two levels: over the ranks of each host, then over the hosts.
//
// Between the levels partial sums have the tensor's dtype. Factors before the reduction belong to
// the first level. Factors after it and the division of Average belong to the last level. So
// integers are truncated exactly as on one host. With one rank on each host and no factor to apply
// there is no first level.
#pragma once

#include "collective/views.h"

namespace hvd {

inline ReduceSpec first_level(ReduceSpec spec) {
  spec.postscale = 1.0;
  spec.divisor = 1;
  if (spec.op == ReduceOp::kAverage) spec.op = ReduceOp::kSum;
  return spec;
}

inline ReduceSpec last_level(ReduceSpec spec) {
  spec.prescale = 1.0;
  spec.weights = nullptr;
  if (spec.op != ReduceOp::kAdasum) return spec;
  spec.op = ReduceOp::kSum;  // the weights contain the factors
  spec.postscale = 1.0;
  return spec;
}

// Whether the tensor itself is the partial sum of a host with one rank.
inline bool is_partial_sum(const View& view) {
  return view.in != nullptr && view.spec.prescale == 1.0 && view.spec.op != ReduceOp::kAdasum;
}

}  // namespace hvd
