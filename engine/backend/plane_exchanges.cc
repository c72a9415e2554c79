#include "backend/plane_exchanges.h"

#include <numeric>
#include <utility>

namespace hvd {

PlaneBroadcast::PlaneBroadcast(ViewList views, int root, Place place, Scratch& scratch)
    : views_(std::move(views)),
      root_(root),
      place_(place),
      scratch_(scratch),
      windows_(views_.size_bytes(), is_direct() ? Scratch::kDirectBytes : Scratch::kWindowBytes) {}

bool PlaneBroadcast::is_direct() const { return views_.views().size() == 1; }

bool PlaneBroadcast::next(DataPlane& plane) {
  if (!windows_.is_before_first() && !is_direct()) {
    copy_out(views_, windows_.of(views_.size_bytes()), scratch_.send.data());
  }
  if (!windows_.advance()) return false;
  Range window = windows_.of(views_.size_bytes());
  const View& first = views_.views()[0];
  if (is_direct()) window.end = std::min(window.end, first.size_bytes);
  // An absent rank has no place for it.
  std::byte* const data = is_direct() && first.out != nullptr ? first.out + window.begin
                                                              : scratch_.to_send(length_of(window));
  if (place_.rank == root_ && data != first.in + window.begin) copy_in(views_, window, data);
  plane.broadcast(data, length_of(window), root_);
  return true;
}

PlaneAllgather::PlaneAllgather(std::vector<ViewList> streams, Place place, Scratch& scratch)
    : streams_(std::move(streams)),
      place_(place),
      scratch_(scratch),
      windows_(longest(streams_),
               is_direct() ? Scratch::kDirectBytes : part_of_window(streams_.size())) {}

// Of one tensor the parts lie one after the other.
bool PlaneAllgather::is_direct() const {
  std::size_t bytes = 0;
  for (const ViewList& stream : streams_) {
    if (stream.views().size() != 1) return false;
    bytes += stream.size_bytes();
  }
  return bytes <= Scratch::kDirectBytes;
}

bool PlaneAllgather::next(DataPlane& plane) {
  const bool is_direct = this->is_direct();
  if (!windows_.is_before_first() && !is_direct) {
    copy_all_out(streams_, windows_, scratch_.receive.data());
  }
  if (!windows_.advance()) return false;
  const ViewList& own = streams_[static_cast<std::size_t>(place_.rank)];
  if (is_direct) {
    sizes_.clear();
    for (const ViewList& stream : streams_) sizes_.push_back(stream.views()[0].size_bytes);
    std::byte* const out = streams_[0].views()[0].out;  // null: this rank is absent
    const std::size_t bytes = std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0});
    plane.allgather(own.views()[0].in, out != nullptr ? out : scratch_.to_receive(bytes), sizes_);
    return true;
  }
  const Range window = windows_.of(own.size_bytes());
  std::byte* const in = scratch_.to_send(length_of(window));
  copy_in(own, window, in);
  std::byte* const out = scratch_.to_receive(measure(streams_, windows_, sizes_));
  plane.allgather(in, out, sizes_);
  return true;
}

PlaneAlltoall::PlaneAlltoall(std::vector<ViewList> sent, std::vector<ViewList> received,
                             std::size_t longest_bytes, Scratch& scratch)
    : sent_(std::move(sent)),
      received_(std::move(received)),
      scratch_(scratch),
      windows_(longest_bytes, part_of_window(sent_.size())) {}

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
