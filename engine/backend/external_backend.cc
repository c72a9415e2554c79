#include "backend/external_backend.h"

#include <map>
#include <utility>

#include "backend/carried_exchanges.h"
#include "backend/carried_reductions.h"
#include "backend/work_views.h"

namespace hvd {

namespace {

constexpr Nanoseconds kShortestPause = std::chrono::microseconds(2);
constexpr Nanoseconds kLongestPause = std::chrono::microseconds(200);

class CarriedBarrier final : public Carried {
 public:
  bool next(Carrier& carrier) override {
    if (std::exchange(is_started_, true)) return false;
    carrier.barrier();
    return true;
  }

 private:
  bool is_started_ = false;
};

View reduced_view(const Work& work, int size) {
  return {.in = work.in,
          .out = work.out,
          .size_bytes = work.request->size_bytes(),
          .spec = spec_of(*work.request, size)};
}

ReduceOp carried_op(ReduceOp op) { return op == ReduceOp::kAverage ? ReduceOp::kSum : op; }

}  // namespace

ExternalBackend::ExternalBackend(Peers& peers, Place place, std::shared_ptr<Carrier> carrier)
    : peers_(peers), carrier_(std::move(carrier)), place_(place) {}

void ExternalBackend::begin(Kind kind, std::span<const Work> works, const AllreduceCut&) {
  queue_.clear();
  position_ = 0;
  ++buckets_;
  switch (kind) {
    case Kind::kAllreduce:
      return add_allreduces(works);
    case Kind::kBroadcast:
      return add_broadcast(works);
    case Kind::kAllgather:
      return add_allgather(works);
    case Kind::kAlltoall:
      for (const Work& work : works) add_alltoall(work);
      return;
    case Kind::kReducescatter:
      return add_reducescatter(works);
    case Kind::kBarrier:
    case Kind::kJoin:
      return;  // that all ranks arrived is all there is to it
  }
}

void ExternalBackend::begin_negotiation() {
  queue_.clear();
  position_ = 0;
  ++buckets_;
  add<CarriedBarrier>();
}

bool ExternalBackend::advance(PeerWait& blocked) {
  for (;;) {
    if (is_called_) {
      if (!carrier_->test()) {
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
    if (queue_[position_]->next(*carrier_)) {
      is_called_ = true;
      called_ns_ = now_ns();
      return true;
    }
    ++position_;
  }
  return false;
}

Nanoseconds ExternalBackend::pause() const {
  return std::clamp(Nanoseconds((now_ns() - called_ns_) / 8), kShortestPause, kLongestPause);
}

// One call for all tensors of a dtype and op that the carrier reduces; our kernels take the rest.
void ExternalBackend::add_allreduces(std::span<const Work> works) {
  std::map<std::pair<Dtype, ReduceOp>, ViewList> carried;
  ViewList others;
  ViewList adasum;
  for (const Work& work : works) {
    const Request& request = *work.request;
    const ReduceOp op = carried_op(request.op);
    const View view = reduced_view(work, place_.size);
    if (op == ReduceOp::kAdasum) {
      adasum.append(view);
    } else if (carrier_->reduces(request.dtype, op)) {
      carried[{request.dtype, op}].append(view);
    } else {
      others.append(view);
    }
  }
  for (auto& [_, views] : carried) add<CarriedAllreduce>(std::move(views), scratch_);
  if (!others.views().empty()) add<CarriedReduction>(std::move(others), place_, scratch_);
  if (!adasum.views().empty()) add<CarriedAdasum>(adasum, place_, scratch_);
}

void ExternalBackend::add_broadcast(std::span<const Work> works) {
  ViewList views;
  for (const Work& work : works) {
    views.append(
        {.in = work.in, .out = work.out, .size_bytes = work.request->size_bytes(), .spec = {}});
  }
  add<CarriedBroadcast>(std::move(views), works.front().root, place_, scratch_);
}

void ExternalBackend::add_allgather(std::span<const Work> works) {
  std::vector<ViewList> streams(static_cast<std::size_t>(place_.size));
  for (const Work& work : works) {
    const std::size_t row_bytes = row_bytes_of(*work.request);
    std::size_t begin = 0;
    for (std::size_t rank = 0; rank < streams.size(); ++rank) {
      const std::size_t bytes = static_cast<std::size_t>(work.rows[rank]) * row_bytes;
      const bool is_own = static_cast<int>(rank) == place_.rank;
      streams[rank].append({.in = is_own ? work.in : nullptr,
                            .out = at_offset(work.out, begin),
                            .size_bytes = bytes,
                            .spec = {}});
      begin += bytes;
    }
  }
  add<CarriedAllgather>(std::move(streams), place_, scratch_);
}

void ExternalBackend::add_alltoall(const Work& work) {
  const std::size_t row_bytes = row_bytes_of(*work.request);
  const auto size = static_cast<std::size_t>(place_.size);
  const auto self = static_cast<std::size_t>(place_.rank);
  const auto bytes = [&](std::size_t giver, std::size_t taker) {
    return static_cast<std::size_t>(work.splits[giver * size + taker]) * row_bytes;
  };
  std::vector<ViewList> given(size);
  std::vector<ViewList> taken(size);
  std::size_t in_begin = 0;
  std::size_t out_begin = 0;
  for (std::size_t rank = 0; rank < size; ++rank) {
    given[rank].append(
        {.in = at_offset(work.in, in_begin), .size_bytes = bytes(self, rank), .spec = {}});
    taken[rank].append(
        {.out = at_offset(work.out, out_begin), .size_bytes = bytes(rank, self), .spec = {}});
    in_begin += bytes(self, rank);
    out_begin += bytes(rank, self);
  }
  std::size_t longest_bytes = 0;
  for (const std::int64_t rows : work.splits) {
    longest_bytes = std::max(longest_bytes, align_up(static_cast<std::size_t>(rows) * row_bytes));
  }
  add<CarriedAlltoall>(std::move(given), std::move(taken), longest_bytes, scratch_);
}

void ExternalBackend::add_reducescatter(std::span<const Work> works) {
  std::vector<ViewList> streams(static_cast<std::size_t>(place_.size));
  for (const Work& work : works) {
    const std::size_t row_bytes = row_bytes_of(*work.request);
    for (int owner = 0; owner < place_.size; ++owner) {
      const RowRange rows = reducescatter_rows(work.request->dims[0], owner, place_.size);
      View view = reduced_view(work, place_.size);
      view.in = at_offset(work.in, static_cast<std::size_t>(rows.begin) * row_bytes);
      view.out = owner == place_.rank ? work.out : nullptr;
      view.size_bytes = static_cast<std::size_t>(rows.count) * row_bytes;
      streams[static_cast<std::size_t>(owner)].append(view);
    }
  }
  add<CarriedReduceScatter>(std::move(streams), place_, scratch_);
}

}  // namespace hvd
