#include "backend/plane_exchanges.h"

#include <numeric>
#include <utility>

namespace hvd {

namespace {

// Whether the data plane can work in place: the parts of one tensor lie one after the other.
bool is_direct(const std::vector<ViewList>& streams) {
  std::size_t bytes = 0;
  for (const ViewList& stream : streams) {
    if (stream.views().size() != 1) return false;
    bytes += stream.size_bytes();
  }
  return bytes <= Scratch::kDirectBytes;
}

}  // namespace

PlaneBroadcast::PlaneBroadcast(ViewList views, int root, Place place, Scratch& scratch)
    : WindowedCollective(place, scratch, views.size_bytes(), window_for(views)),
      views_(std::move(views)),
      root_(root) {}

bool PlaneBroadcast::next(DataPlane& plane) {
  if (!windows_.is_before_first() && !is_direct()) {
    copy_out(views_, windows_.of(views_.size_bytes()), scratch_.send.data());
  }
  if (!windows_.advance()) return false;
  Range window = windows_.of(views_.size_bytes());
  const View& first = views_.views()[0];
  if (is_direct()) window.end = std::min(window.end, first.size_bytes);
  // An absent rank has no output.
  std::byte* const data = is_direct() && first.out != nullptr ? first.out + window.begin
                                                              : scratch_.to_send(length_of(window));
  if (place_.rank == root_ && data != first.in + window.begin) copy_in(views_, window, data);
  plane.broadcast(data, length_of(window), root_);
  return true;
}

PlaneAllgather::PlaneAllgather(std::vector<ViewList> streams, Place place, Scratch& scratch)
    : WindowedCollective(
          place, scratch, longest_of(streams),
          is_direct(streams) ? Scratch::kDirectBytes : part_of_window(streams.size())),
      streams_(std::move(streams)) {}

bool PlaneAllgather::next(DataPlane& plane) {
  const bool is_direct = hvd::is_direct(streams_);
  if (!windows_.is_before_first() && !is_direct) {
    copy_all_out(streams_, windows_, scratch_.receive.data());
  }
  if (!windows_.advance()) return false;
  const ViewList& own = streams_[static_cast<std::size_t>(place_.rank)];
  if (is_direct) {
    in_sizes_.clear();
    for (const ViewList& stream : streams_) in_sizes_.push_back(stream.views()[0].size_bytes);
    std::byte* const out = streams_[0].views()[0].out;  // null: this rank is absent
    const std::size_t bytes = std::accumulate(in_sizes_.begin(), in_sizes_.end(), std::size_t{0});
    plane.allgather(own.views()[0].in, out != nullptr ? out : scratch_.to_receive(bytes),
                    in_sizes_);
    return true;
  }
  const Range window = windows_.of(own.size_bytes());
  std::byte* const in = scratch_.to_send(length_of(window));
  copy_in(own, window, in);
  std::byte* const out = scratch_.to_receive(measure(streams_, windows_, in_sizes_));
  plane.allgather(in, out, in_sizes_);
  return true;
}

PlaneAlltoall::PlaneAlltoall(std::vector<ViewList> sent, std::vector<ViewList> received,
                             std::size_t longest_bytes, Place place, Scratch& scratch)
    : WindowedCollective(place, scratch, longest_bytes, part_of_window(sent.size())),
      sent_(std::move(sent)),
      received_(std::move(received)) {}

bool PlaneAlltoall::next(DataPlane& plane) {
  if (!windows_.is_before_first()) copy_all_out(received_, windows_, scratch_.receive.data());
  if (!windows_.advance()) return false;
  std::byte* const in = scratch_.to_send(measure(sent_, windows_, in_sizes_));
  copy_all_in(sent_, windows_, in);
  std::byte* const out = scratch_.to_receive(measure(received_, windows_, out_sizes_));
  plane.alltoall(in, in_sizes_, out, out_sizes_);
  return true;
}

}  // namespace hvd
