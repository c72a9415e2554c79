// Broadcast, allgather and alltoall over a data plane.
#pragma once

#include <vector>

#include "backend/plane_collective.h"

namespace hvd {

class PlaneBroadcast final : public WindowedCollective {
 public:
  // The same tensors on all ranks. The data plane works on a single tensor in place.
  PlaneBroadcast(ViewList views, int root, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  bool is_direct() const { return views_.views().size() == 1; }

  const ViewList views_;
  const int root_;
};

class PlaneAllgather final : public WindowedCollective {
 public:
  // By the rank that gives: its tensors. `in`: for this rank's own. `out`: where they go.
  PlaneAllgather(std::vector<ViewList> streams, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  const std::vector<ViewList> streams_;
};

class PlaneAlltoall final : public WindowedCollective {
 public:
  // `sent` by receiver, `received` by sender; `longest_bytes`: of any stream between two ranks.
  PlaneAlltoall(std::vector<ViewList> sent, std::vector<ViewList> received,
                std::size_t longest_bytes, Place place, Scratch& scratch);
  bool next(DataPlane& plane) override;

 private:
  const std::vector<ViewList> sent_;
  const std::vector<ViewList> received_;
};

}  // namespace hvd
