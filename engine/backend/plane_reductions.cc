#include "backend/plane_reductions.h"

#include <numeric>
#include <utility>

#include "collective/adasum_weights.h"
#include "kernels/adasum.h"

namespace hvd {

namespace {

std::size_t index_of(int rank) { return static_cast<std::size_t>(rank); }

// Points at the ranks' parts of one range, which lie in rank order, plus `offset`.
void point_at(std::vector<const std::byte*>& sources, const std::byte* base,
              std::size_t length_bytes, std::size_t offset) {
  for (std::size_t rank = 0; rank < sources.size(); ++rank) {
    sources[rank] = base + rank * length_bytes + offset;
  }
}

// Sends every rank its share of a window of `views`.
void exchange_shares(DataPlane& plane, const ViewList& views, Range window, Place place,
                     Scratch& scratch, std::vector<std::size_t>& in_sizes,
                     std::vector<std::size_t>& out_sizes) {
  in_sizes.clear();
  for (int rank = 0; rank < place.size; ++rank) {
    in_sizes.push_back(length_of(share_of(rank, place.size, window)));
  }
  const std::size_t own = in_sizes[index_of(place.rank)];
  out_sizes.assign(in_sizes.size(), own);
  std::byte* const in = scratch.to_send(length_of(window));
  copy_in(views, window, in);
  plane.alltoall(in, in_sizes, scratch.to_receive(own * in_sizes.size()), out_sizes);
}

}  // namespace

PlaneAllreduce::PlaneAllreduce(ViewList views, Place place, Scratch& scratch)
    : WindowedCollective(place, scratch, views.size_bytes(), window_for(views)),
      views_(std::move(views)) {}

Range PlaneAllreduce::window() const {
  Range window = windows_.of(views_.size_bytes());
  // The stream is longer than its tensors by a gap.
  if (is_direct()) window.end = std::min(window.end, views_.views()[0].size_bytes);
  return window;
}

bool PlaneAllreduce::next(DataPlane& plane) {
  if (!windows_.is_before_first()) take_out(window());
  if (!windows_.advance()) return false;
  const ReduceSpec& spec = views_.views()[0].spec;
  const Range window = this->window();
  std::byte* const out = is_direct() ? views_.views()[0].out : nullptr;
  data_ = out != nullptr ? out + window.begin : scratch_.to_send(length_of(window));
  put_in(window);
  plane.allreduce(data_, length_of(window) / size_of(spec.dtype), spec.dtype,
                  spec.op == ReduceOp::kAverage ? ReduceOp::kSum : spec.op);
  return true;
}

void PlaneAllreduce::put_in(Range window) {
  views_.for_each_piece(window, [&](const Piece& piece) {
    std::byte* const to = data_ + (piece.stream - window.begin);
    const std::byte* const source = piece.in();
    const ReduceSpec& spec = piece.view.spec;
    if (source != nullptr && spec.prescale != 1.0) {
      const ReduceSpec scaling{
          .dtype = spec.dtype, .op = ReduceOp::kSum, .prescale = spec.prescale};
      reduce(scaling, {&source, 1}, to, nullptr, piece.element_count());
    } else if (source != to) {
      piece.copy_to(to);
    }
  });
}

void PlaneAllreduce::take_out(Range window) {
  views_.for_each_piece(window, [&](const Piece& piece) {
    if (piece.view.out == nullptr) return;
    const std::byte* const source = data_ + (piece.stream - window.begin);
    ReduceSpec scaling = piece.view.spec;
    if (scaling.op == ReduceOp::kAverage || scaling.postscale != 1.0) {
      scaling.prescale = 1.0;
      reduce(scaling, {&source, 1}, piece.out(), nullptr, piece.element_count());
    } else if (source != piece.out()) {
      std::memcpy(piece.out(), source, piece.size_bytes);
    }
  });
}

PlaneReduction::PlaneReduction(ViewList views, Place place, Scratch& scratch)
    : WindowedCollective(place, scratch, views.size_bytes()), views_(std::move(views)) {}

bool PlaneReduction::next(DataPlane& plane) {
  if (phase_ == Phase::kShares) {
    reduce_share();
    const std::size_t window_bytes = std::accumulate(in_sizes_.begin(), in_sizes_.end(), 0UL);
    plane.allgather(scratch_.send.data(), scratch_.to_receive(window_bytes), in_sizes_);
    phase_ = Phase::kResults;
    return true;
  }
  if (phase_ == Phase::kResults) {
    copy_out(views_, windows_.of(views_.size_bytes()), scratch_.receive.data());
  }
  if (!windows_.advance()) return false;
  exchange_shares(plane, views_, windows_.of(views_.size_bytes()), place_, scratch_, in_sizes_,
                  out_sizes_);
  phase_ = Phase::kShares;
  return true;
}

void PlaneReduction::reduce_share() {
  const Range own = share_of(place_.rank, place_.size, windows_.of(views_.size_bytes()));
  std::vector<const std::byte*> sources(index_of(place_.size));
  views_.for_each_piece(own, [&](const Piece& piece) {
    const std::size_t offset = piece.stream - own.begin;
    point_at(sources, scratch_.receive.data(), length_of(own), offset);
    reduce(piece.view.spec, sources, scratch_.send.data() + offset, nullptr, piece.element_count());
  });
}

PlaneAdasum::PlaneAdasum(const ViewList& views, Place place, Scratch& scratch)
    : WindowedCollective(place, scratch, views.size_bytes()),
      grams_(views.views().size() * gram_entries(index_of(place.size)), 0.0),
      weights_(views.views().size() * index_of(place.size), 1.0),
      views_(with_weights(views, index_of(place.size), weights_.data())),
      sum_(views_, place, scratch) {}

bool PlaneAdasum::next(DataPlane& plane) {
  if (phase_ == Phase::kShares) {
    if (!windows_.is_before_first()) add_dots();
    if (windows_.advance()) {
      exchange_shares(plane, views_, windows_.of(views_.size_bytes()), place_, scratch_, in_sizes_,
                      out_sizes_);
      return true;
    }
    const std::size_t bytes = grams_.size() * sizeof(double);
    in_sizes_.assign(index_of(place_.size), bytes);
    plane.allgather(reinterpret_cast<const std::byte*>(grams_.data()),
                    scratch_.to_receive(bytes * in_sizes_.size()), in_sizes_);
    phase_ = Phase::kGrams;
    return true;
  }
  if (phase_ == Phase::kGrams) begin_sum();
  return sum_.next(plane);
}

void PlaneAdasum::add_dots() {
  const Range own = share_of(place_.rank, place_.size, windows_.of(views_.size_bytes()));
  std::vector<const std::byte*> sources(index_of(place_.size));
  views_.for_each_piece(own, [&](const Piece& piece) {
    point_at(sources, scratch_.receive.data(), length_of(own), piece.stream - own.begin);
    add_gram(views_, piece, sources, grams_.data());
  });
}

// Every rank adds up the shares' dot products in rank order. So all ranks have the same weights.
void PlaneAdasum::begin_sum() {
  const std::size_t ranks = index_of(place_.size);
  const std::size_t bytes = grams_.size() * sizeof(double);
  std::vector<const std::byte*> sources(ranks);
  point_at(sources, scratch_.receive.data(), bytes, 0);
  reduce({.dtype = Dtype::kFloat64, .op = ReduceOp::kSum}, sources,
         reinterpret_cast<std::byte*>(grams_.data()), nullptr, grams_.size());
  weigh_views(views_, ranks, grams_, weights_);
  phase_ = Phase::kSum;
}

PlaneReduceScatter::PlaneReduceScatter(std::vector<ViewList> streams, Place place, Scratch& scratch)
    : WindowedCollective(place, scratch, longest_of(streams), part_of_window(streams.size())),
      streams_(std::move(streams)) {}

bool PlaneReduceScatter::next(DataPlane& plane) {
  if (!windows_.is_before_first()) reduce_own();
  if (!windows_.advance()) return false;
  std::byte* const in = scratch_.to_send(measure(streams_, windows_, in_sizes_));
  copy_all_in(streams_, windows_, in);
  const std::size_t own = in_sizes_[index_of(place_.rank)];
  out_sizes_.assign(in_sizes_.size(), own);
  plane.alltoall(in, in_sizes_, scratch_.to_receive(own * in_sizes_.size()), out_sizes_);
  return true;
}

void PlaneReduceScatter::reduce_own() {
  const ViewList& own = streams_[index_of(place_.rank)];
  const Range window = windows_.of(own.size_bytes());
  std::vector<const std::byte*> sources(index_of(place_.size));
  own.for_each_piece(window, [&](const Piece& piece) {
    if (piece.view.out == nullptr) return;
    point_at(sources, scratch_.receive.data(), length_of(window), piece.stream - window.begin);
    reduce(piece.view.spec, sources, piece.out(), nullptr, piece.element_count());
  });
}

}  // namespace hvd
