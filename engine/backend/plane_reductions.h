// Allreduce, Adasum and reduce-scatter over a data plane.
#pragma once

#include <vector>

#include "backend/plane_collective.h"

namespace hvd {

// Tensors of one dtype and op that the data plane can reduce. Scaling is done before and after.
class PlaneAllreduce final : public PlaneCollective {
 public:
  // A single tensor is reduced in its output.
  PlaneAllreduce(ViewList views, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  Range window() const;
  bool is_direct() const { return views_.views().size() == 1; }
  void put_in(Range window);
  void take_out(Range window);

  const ViewList views_;
  Scratch& scratch_;
  Windows windows_;
  std::byte* data_ = nullptr;
};

// Other tensors, by our kernels: ranks exchange shares, each reduces its own, all gather the
// results. Elements are summed in rank order, so the bits are those of the shared-memory backend.
class PlaneReduction final : public PlaneCollective {
 public:
  PlaneReduction(ViewList views, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  enum class Phase { kBetween, kShares, kResults };

  void reduce_share();

  const ViewList views_;
  const Place place_;
  Scratch& scratch_;
  Windows windows_;
  Phase phase_ = Phase::kBetween;
  std::vector<std::size_t> in_sizes_;
  std::vector<std::size_t> out_sizes_;
};

// Shares are exchanged twice: for the dot products, from which each rank computes the weights
// (collective/adasum_weights.h), and for the weighted sum.
class PlaneAdasum final : public PlaneCollective {
 public:
  PlaneAdasum(const ViewList& views, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  enum class Phase { kShares, kGrams, kSum };

  void add_dots();
  void begin_sum();

  const Place place_;
  Scratch& scratch_;
  std::vector<double> grams_;    // by view
  std::vector<double> weights_;  // by view, by rank
  const ViewList views_;         // with weights
  Windows windows_;
  PlaneReduction sum_;
  Phase phase_ = Phase::kShares;
  std::vector<std::size_t> in_sizes_;
  std::vector<std::size_t> out_sizes_;
};

class PlaneReduceScatter final : public PlaneCollective {
 public:
  // By owner: this rank's data of the owner's part; `out` for its own part.
  PlaneReduceScatter(std::vector<ViewList> streams, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  void reduce_own();

  const std::vector<ViewList> streams_;
  const Place place_;
  Scratch& scratch_;
  Windows windows_;
  std::vector<std::size_t> in_sizes_;
  std::vector<std::size_t> out_sizes_;
};

}  // namespace hvd
