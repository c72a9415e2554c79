// The hosts of a process set, and the rank that owns each channel of a host.
//
// The number of channels of a set is the number of members of its largest host, or a larger one
// that is asked for. Channel c of a host belongs to its member c mod (number of members). So every
// rank owns at least one channel, member i owns channel i, and each pair of hosts has one
// connection per channel. Allreduces use all channels, other collectives those of the members.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace hvd {

struct HostMap {
  std::vector<std::vector<int>> hosts;  // set ranks of each host, rising
  int own = 0;                          // index of this rank's host
  int least_channels = 1;

  int host_count() const { return static_cast<int>(hosts.size()); }
  std::size_t rank_count() const {
    std::size_t count = 0;
    for (const auto& host : hosts) count += host.size();
    return count;
  }
  int members(int host) const { return static_cast<int>(hosts[host].size()); }
  int own_members() const { return members(own); }

  int most_members() const {
    std::size_t most = 0;
    for (const auto& host : hosts) most = std::max(most, host.size());
    return static_cast<int>(most);
  }
  int channels() const { return std::max(most_members(), least_channels); }
  // The channel's owner on `host`: index among the members, and set rank.
  int owner_index(int channel, int host) const { return channel % members(host); }
  int owner(int channel, int host) const { return hosts[host][owner_index(channel, host)]; }

  // Calls use(host) for every other host, beginning with the next one, so that not all hosts use
  // the same host at a time.
  template <typename Use>
  void for_each_other(Use&& use) const {
    for (int step = 1; step < host_count(); ++step) use((own + step) % host_count());
  }
};

}  // namespace hvd
