// Broadcast, allgather and alltoall over a data plane.
#pragma once

#include <vector>

#include "backend/plane_collective.h"

namespace hvd {

class PlaneBroadcast final : public PlaneCollective {
 public:
  // The same tensors on all ranks. The data plane works on a single tensor in place.
  PlaneBroadcast(ViewList views, int root, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  bool is_direct() const;

  const ViewList views_;
  const int root_;
  const Place place_;
  Scratch& scratch_;
  Windows windows_;
};

class PlaneAllgather final : public PlaneCollective {
 public:
  // By the rank that gives: its tensors (`in`: this rank's own) and where they go.
  PlaneAllgather(std::vector<ViewList> streams, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  bool is_direct() const;

  const std::vector<ViewList> streams_;
  const Place place_;
  Scratch& scratch_;
  Windows windows_;
  std::vector<std::size_t> sizes_;
};

class PlaneAlltoall final : public PlaneCollective {
 public:
  // `sent` by receiver, `received` by sender; `longest_bytes`: of any stream between two ranks.
  PlaneAlltoall(std::vector<ViewList> sent, std::vector<ViewList> received,
                std::size_t longest_bytes, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  const std::vector<ViewList> sent_;
  const std::vector<ViewList> received_;
  Scratch& scratch_;
  Windows windows_;
  std::vector<std::size_t> in_sizes_;
  std::vector<std::size_t> out_sizes_;
};

}  // namespace hvd
