#include "backend/device_ipc_plan.h"

#include <algorithm>

#include "collective/shares.h"
#include "gpu/reduction_ptx.h"

namespace hvd {

namespace {

Place as_rank(int rank, Place place) { return {.rank = rank, .size = place.size}; }

// Appends what this rank takes of one work; `starts`: where the work begins in each rank's stream.
class Taker {
 public:
  Taker(const Work& work, Place place, const std::vector<std::size_t>& starts, IpcPlan& plan)
      : work_(work), place_(place), starts_(starts), plan_(plan), to_(work.out) {}

  void take() {
    const Request& request = *work_.request;
    const Collective& collective = collective_of(request.kind);
    if (collective.has_root) {
      if (work_.root == place_.rank && work_.in == work_.out) return;
      add(work_.root, 0, request.size_bytes());
    } else if (collective.is_reduction) {
      const bool is_whole = collective.keeps_shape();
      const std::size_t begin = is_whole ? 0 : begin_of_own_rows(request);
      add(IpcTaking::kAll, begin, taken_bytes(work_, place_));
    } else if (collective.has_splits()) {
      for (int from = 0; from < place_.size; ++from) take_split(from);
    } else {
      for (int from = 0; from < place_.size; ++from) {
        add(from, 0, given_bytes(work_, as_rank(from, place_)));
      }
    }
  }

 private:
  std::size_t begin_of_own_rows(const Request& request) const {
    const RowRange rows = reducescatter_rows(request.dims[0], place_.rank, place_.size);
    return bytes_of_rows(request, rows.begin);
  }

  void take_split(int from) {
    std::size_t begin = 0;
    for (int to = 0; to < place_.rank; ++to) begin += split_bytes(work_, from, to, place_.size);
    add(from, begin, split_bytes(work_, from, place_.rank, place_.size));
  }

  void add(int giver, std::size_t begin, std::size_t size_bytes) {
    if (size_bytes == 0) return;
    const int whose = giver == IpcTaking::kAll ? place_.rank : giver;
    plan_.takings.push_back({.work = &work_,
                             .giver = giver,
                             .at = starts_[static_cast<std::size_t>(whose)] + begin,
                             .to = to_,
                             .size_bytes = size_bytes});
    to_ += size_bytes;
  }

  const Work& work_;
  const Place place_;
  const std::vector<std::size_t>& starts_;
  IpcPlan& plan_;
  std::byte* to_;
};

}  // namespace

IpcPlan plan_ipc(std::span<const Work> works, Place place) {
  IpcPlan plan;
  std::vector<std::size_t> starts(static_cast<std::size_t>(place.size), 0);
  for (const Work& work : works) {
    if (work.out != nullptr) Taker(work, place, starts, plan).take();
    for (int rank = 0; rank < place.size; ++rank) {
      std::size_t& start = starts[static_cast<std::size_t>(rank)];
      const std::size_t given = given_bytes(work, as_rank(rank, place));
      if (rank == place.rank && given != 0) {
        plan.gifts.push_back({.work = &work, .at = start, .from = work.in, .size_bytes = given});
      }
      start += align_up(given);
    }
  }
  plan.longest_bytes = std::ranges::max(starts);
  return plan;
}

bool ipc_runs(const Request& request) {
  if (!is_reduction(request.kind)) return true;
  if (is_float(request.dtype)) {
    return request.op == ReduceOp::kAverage || has_reduction_kernel(request.op);
  }
  return has_reduction_kernel(request.op) && request.prescale == 1.0 && request.postscale == 1.0;
}

}  // namespace hvd
