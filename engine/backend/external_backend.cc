#include "backend/external_backend.h"

#include <map>
#include <utility>

#include "backend/plane_exchanges.h"
#include "backend/plane_reductions.h"

namespace hvd {

namespace {

class PlaneBarrier final : public PlaneCollective {
 public:
  bool next(DataPlane& plane) override {
    if (std::exchange(is_started_, true)) return false;
    plane.barrier();
    return true;
  }

 private:
  bool is_started_ = false;
};

ReduceOp plane_op(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

}  // namespace

ExternalBackend::ExternalBackend(Peers& peers, Place place, std::shared_ptr<DataPlane> plane)
    : peers_(peers), plane_(std::move(plane)), place_(place) {}

void ExternalBackend::clear() {
  queue_.clear();
  position_ = 0;
  ++buckets_;
}

void ExternalBackend::begin_barrier() {
  clear();
  add<PlaneBarrier>();
}

bool ExternalBackend::advance(PeerWait& blocked) {
  for (;;) {
    if (is_called_) {
      if (!plane_->test()) {
        blocked = {.is_polled = true};
        return false;
      }
      is_called_ = false;
    }
    if (!start_next()) break;
  }
  queue_.clear();
  scratch_.shrink();
  peers_.publish(Counter::kFinished, buckets_);
  return true;
}

bool ExternalBackend::start_next() {
  while (position_ < queue_.size()) {
    if (queue_[position_]->next(*plane_)) {
      is_called_ = true;
      called_ns_ = now_ns();
      return true;
    }
    ++position_;
  }
  return false;
}

Nanoseconds ExternalBackend::pause() const { return pause_after(called_ns_); }

// One call for all tensors of a dtype and op that the data plane reduces. Our kernels do the rest.
void ExternalBackend::begin_allreduce(std::span<const Work> works, const AllreduceCut&) {
  std::map<std::pair<Dtype, ReduceOp>, ViewList> reduced;
  ViewList others;
  ViewList adasum;
  for (const Work& work : works) {
    const Request& request = *work.request;
    const ReduceOp op = plane_op(request.op);
    const View view = reduced_view(work, place_.size);
    if (op == ReduceOp::kAdasum) {
      adasum.append(view);
    } else if (plane_->reduces(request.dtype, op)) {
      reduced[{request.dtype, op}].append(view);
    } else {
      others.append(view);
    }
  }
  for (auto& [_, views] : reduced) add<PlaneAllreduce>(std::move(views), place_, scratch_);
  if (!others.views().empty()) add<PlaneReduction>(std::move(others), place_, scratch_);
  if (!adasum.views().empty()) add<PlaneAdasum>(adasum, place_, scratch_);
}

void ExternalBackend::begin_broadcast(std::span<const Work> works) {
  ViewList views;
  for (const Work& work : works) views.append(moved_view(work));
  add<PlaneBroadcast>(std::move(views), works.front().root, place_, scratch_);
}

void ExternalBackend::begin_allgather(std::span<const Work> works) {
  std::vector<ViewList> streams(static_cast<std::size_t>(place_.size));
  for (const Work& work : works) append_rows(work, place_, streams);
  add<PlaneAllgather>(std::move(streams), place_, scratch_);
}

void ExternalBackend::begin_alltoall(std::span<const Work> works) {
  for (const Work& work : works) add_alltoall(work);
}

void ExternalBackend::add_alltoall(const Work& work) {
  const auto [self, size] = place_;
  std::vector<ViewList> sent(static_cast<std::size_t>(size));
  std::vector<ViewList> received(sent.size());
  std::size_t in_begin = 0;
  std::size_t out_begin = 0;
  std::size_t longest_bytes = 0;
  for (int rank = 0; rank < size; ++rank) {
    const std::size_t in_bytes = split_bytes(work, self, rank, size);
    const std::size_t out_bytes = split_bytes(work, rank, self, size);
    sent[rank].append({.in = at_offset(work.in, in_begin), .size_bytes = in_bytes});
    received[rank].append({.out = at_offset(work.out, out_begin), .size_bytes = out_bytes});
    in_begin += in_bytes;
    out_begin += out_bytes;
    for (int to = 0; to < size; ++to) {
      longest_bytes = std::max(longest_bytes, align_up(split_bytes(work, rank, to, size)));
    }
  }
  add<PlaneAlltoall>(std::move(sent), std::move(received), longest_bytes, place_, scratch_);
}

void ExternalBackend::begin_reducescatter(std::span<const Work> works) {
  std::vector<ViewList> streams(static_cast<std::size_t>(place_.size));
  for (const Work& work : works) append_parts(work, place_, streams);
  add<PlaneReduceScatter>(std::move(streams), place_, scratch_);
}

}  // namespace hvd
