// Allreduce, Adasum and reduce-scatter over a data plane.
#pragma once

#include <vector>

#include "backend/plane_collective.h"

namespace hvd {

// Tensors of one dtype and op that the data plane can reduce. Scaling is done before and after.
class PlaneAllreduce final : public WindowedCollective {
 public:
  // A single tensor is reduced in its output.
  PlaneAllreduce(ViewList views, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  Range window() const;
  bool is_direct() const { return views_.views().size() == 1; }
  void put_in(Range window);
  void take_out(Range window);

  const ViewList views_;
  std::byte* data_ = nullptr;
};

// Other tensors, with our kernels: ranks exchange shares, each reduces its own, and all gather the
// results. Elements are summed in rank order, so the bits are those of the shared-memory backend.
class PlaneReduction final : public WindowedCollective {
 public:
  PlaneReduction(ViewList views, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  enum class Phase { kBetween, kShares, kResults };

  void reduce_share();

  const ViewList views_;
  Phase phase_ = Phase::kBetween;
};

// Shares are exchanged twice: for the dot products, from which each rank computes the weights
// (collective/adasum_weights.h), and for the weighted sum.
class PlaneAdasum final : public WindowedCollective {
 public:
  PlaneAdasum(const ViewList& views, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  enum class Phase { kShares, kGrams, kSum };

  void add_dots();
  void begin_sum();

  std::vector<double> grams_;    // by view
  std::vector<double> weights_;  // by view, by rank
  const ViewList views_;         // with weights
  PlaneReduction sum_;
  Phase phase_ = Phase::kShares;
};

class PlaneReduceScatter final : public WindowedCollective {
 public:
  // By owner: this rank's data of the owner's part; `out` for its own part.
  PlaneReduceScatter(std::vector<ViewList> streams, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  void reduce_own();

  const std::vector<ViewList> streams_;
};

}  // namespace hvd
