// Broadcast, allgather and alltoall over a carrier.
#pragma once

#include <vector>

#include "backend/carried.h"

namespace hvd {

class CarriedBroadcast final : public Carried {
 public:
  // The same tensors on all ranks. One alone is given to the carrier as it is.
  CarriedBroadcast(ViewList views, int root, Place place, Scratch& scratch);
  bool next(Carrier& carrier) override;

 private:
  bool is_direct() const;

  const ViewList views_;
  const int root_;
  const Place place_;
  Scratch& scratch_;
  Windows windows_;
};

class CarriedAllgather final : public Carried {
 public:
  // By giver: what it gives (`in`: this rank's own) and where it goes.
  CarriedAllgather(std::vector<ViewList> streams, Place place, Scratch& scratch);
  bool next(Carrier& carrier) override;

 private:
  bool is_direct() const;

  const std::vector<ViewList> streams_;
  const Place place_;
  Scratch& scratch_;
  Windows windows_;
  std::vector<std::size_t> sizes_;
};

class CarriedAlltoall final : public Carried {
 public:
  // `given` by taker, `taken` by giver; `longest_bytes`: of any stream between two ranks.
  CarriedAlltoall(std::vector<ViewList> given, std::vector<ViewList> taken,
                  std::size_t longest_bytes, Scratch& scratch);
  bool next(Carrier& carrier) override;

 private:
  const std::vector<ViewList> given_;
  const std::vector<ViewList> taken_;
  Scratch& scratch_;
  Windows windows_;
  std::vector<std::size_t> in_sizes_;
  std::vector<std::size_t> out_sizes_;
};

}  // namespace hvd
