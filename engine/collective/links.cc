#include "collective/links.h"

#include <algorithm>

namespace hvd {

Links::Links(const HostMap& map, const std::vector<DataLink>& links)
    : channels_(map.channels()), links_(map.hosts.size() * static_cast<std::size_t>(channels_)) {
  for (const DataLink& link : links) {
    auto& place = links_[link.host * channels_ + link.channel];
    place = std::make_unique<Link>(link.fd, map.owner(link.channel, link.host), link.seals);
    all_.push_back(place.get());
  }
}

void Links::close_copies() {
  for (Link* link : all_) link->close_copy();
}

bool Links::pump() {
  bool has_moved = false;
  for (Link* link : all_) {
    if (!link->is_idle()) has_moved |= link->pump();
  }
  return has_moved;
}

bool Links::is_idle() const {
  return std::ranges::all_of(all_, [](const Link* link) { return link->is_idle(); });
}

int Links::awaited() const {
  for (const Link* link : all_) {
    if (!link->receives().empty()) return link->peer();
  }
  for (const Link* link : all_) {
    if (!link->sends().empty()) return link->peer();
  }
  return -1;
}

std::uint64_t Links::sent_bytes() const {
  std::uint64_t bytes = 0;
  for (const Link* link : all_) bytes += link->sends().end();
  return bytes;
}

void Links::add_polls(std::vector<pollfd>& polls) const {
  for (const Link* link : all_) {
    const int in = link->receives().empty() ? 0 : POLLIN;
    const int out = link->sends().empty() ? 0 : POLLOUT;
    if (in == 0 && out == 0) continue;
    polls.push_back({.fd = link->fd(), .events = static_cast<short>(in | out), .revents = 0});
  }
}

}  // namespace hvd
