// Allreduce, Adasum and reduce-scatter over a carrier.
#pragma once

#include <vector>

#include "backend/carried.h"

namespace hvd {

// What the carrier can reduce: tensors of one dtype and op. Scaling is done before and after.
class CarriedAllreduce final : public Carried {
 public:
  // One tensor alone is reduced where its result belongs.
  CarriedAllreduce(ViewList views, Scratch& scratch);
  bool next(Carrier& carrier) override;

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

// The rest, by our kernels: ranks exchange shares, each reduces its own, all gather the results.
// Elements are summed in rank order, so these are the bits of the shared-memory engine.
class CarriedReduction final : public Carried {
 public:
  CarriedReduction(ViewList views, Place place, Scratch& scratch);
  bool next(Carrier& carrier) override;

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

// Shares are exchanged twice: for the dot products, of which each rank makes the weights
// (collective/adasum_weights.h), and for the weighted sum.
class CarriedAdasum final : public Carried {
 public:
  CarriedAdasum(const ViewList& views, Place place, Scratch& scratch);
  bool next(Carrier& carrier) override;

 private:
  enum class Phase { kShares, kGrams, kSum };

  void add_dots();
  void begin_sum();
  ViewList weighted(const ViewList& views);

  const Place place_;
  Scratch& scratch_;
  std::vector<double> grams_;    // by view
  std::vector<double> weights_;  // by view, by rank
  const ViewList views_;         // with weights
  Windows windows_;
  CarriedReduction sum_;
  Phase phase_ = Phase::kShares;
  std::vector<std::size_t> in_sizes_;
  std::vector<std::size_t> out_sizes_;
};

class CarriedReduceScatter final : public Carried {
 public:
  // By owner: what this rank gives of its part; `out` for its own part.
  CarriedReduceScatter(std::vector<ViewList> streams, Place place, Scratch& scratch);
  bool next(Carrier& carrier) override;

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
