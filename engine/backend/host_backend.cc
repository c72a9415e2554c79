#include "backend/host_backend.h"

namespace hvd {

HostBackend::HostBackend(Peers& peers)
    : peers_(peers),
      allreduce_(peers),
      adasum_(peers),
      exchange_(peers),
      barrier_(peers),
      reduce_scatter_(peers),
      streams_(peers.size()) {}

void HostBackend::clear() {
  views_.clear();
  for (ViewList& stream : streams_) stream.clear();
  running_ = nullptr;
}

void HostBackend::begin_barrier() { run(barrier_, next_block_); }

void HostBackend::begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) {
  for (const Work& work : works) {
    views_.append(reduced_view(work, peers_.size()));
    clear_errors(views_.views().back());  // inside a host everything is exact
  }
  if (is_adasum(works)) {
    run(adasum_, views_, next_block_);
  } else {
    run(allreduce_, views_, next_block_, cut);
  }
}

void HostBackend::begin_broadcast(std::span<const Work> works) {
  for (const Work& work : works) {
    const View view = moved_view(work);
    streams_[work.root].append(view);
    if (work.root == peers_.rank()) views_.append(view);
  }
  run(exchange_, streams_, views_, next_block_);
}

void HostBackend::begin_allgather(std::span<const Work> works) {
  for (const Work& work : works) {
    append_rows(work, place(), streams_);
    views_.append(streams_[peers_.rank()].views().back());
  }
  run(exchange_, streams_, views_, next_block_);
}

void HostBackend::begin_alltoall(std::span<const Work> works) {
  for (const Work& work : works) fill_alltoall(work);
  run(exchange_, streams_, views_, next_block_);
}

void HostBackend::begin_reducescatter(std::span<const Work> works) {
  for (const Work& work : works) append_parts(work, place(), streams_);
  run(reduce_scatter_, streams_, next_block_);
}

// A rank's rows lie in the order of their receivers, and a result's in the order of their senders.
// The stream of a sender starts with the next rank, so that at any time the receivers are different
// ranks.
void HostBackend::fill_alltoall(const Work& work) {
  const auto [self, size] = place();
  const auto bytes = [&](int from, int to) { return split_bytes(work, from, to, size); };
  std::vector<std::size_t> in_begins(size, 0);
  for (int rank = 1; rank < size; ++rank) {
    in_begins[rank] = in_begins[rank - 1] + bytes(self, rank - 1);
  }
  std::size_t out_begin = 0;
  for (int from = 0; from < size; ++from) {
    const auto view_for = [&](int to) {
      return View{.in = from == self ? at_offset(work.in, in_begins[to]) : nullptr,
                  .out = to == self ? at_offset(work.out, out_begin) : nullptr,
                  .size_bytes = bytes(from, to)};
    };
    for (int step = 1; step < size; ++step) streams_[from].append(view_for((from + step) % size));
    if (from == self) views_.append(view_for(self));
    out_begin += bytes(from, self);
  }
}

}  // namespace hvd
