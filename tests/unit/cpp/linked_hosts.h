// The connections of a world whose ranks are threads of this process, on several hosts.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "control/tree.h"
#include "runtime/connections.h"
#include "runtime/process_set_context.h"
#include "seals.h"

namespace hvd::test {

using Hosts = std::vector<std::vector<int>>;

// Ranks in turn, `ranks_per_host` to each.
inline Hosts split_into_hosts(int size, int ranks_per_host) {
  Hosts hosts;
  for (int rank = 0; rank < size; ++rank) {
    if (rank % ranks_per_host == 0) hosts.emplace_back();
    hosts.back().push_back(rank);
  }
  return hosts;
}

inline int host_of(const Hosts& hosts, int rank) {
  const auto has = [rank](const auto& host) { return std::ranges::find(host, rank) != host.end(); };
  return static_cast<int>(std::ranges::find_if(hosts, has) - hosts.begin());
}

struct Pair {
  int first = -1;
  int second = -1;
};

inline Pair connected_pair() {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
  return {pair[0], pair[1]};
}

// Of a set, by world rank; those that are not members get nothing.
inline std::vector<SetLinks> link_set(const Hosts& world, const std::vector<int>& members,
                                      int size) {
  std::vector<SetLinks> links(static_cast<std::size_t>(size));
  const HostMap map = hosts_of_set(world, members, 0);
  const auto of = [&](int set_rank) -> SetLinks& {
    return links[static_cast<std::size_t>(members[static_cast<std::size_t>(set_rank)])];
  };
  for (int a = 0; a < map.host_count(); ++a) {
    for (int b = a + 1; b < map.host_count(); ++b) {
      for (int channel = 0; channel < map.channels(); ++channel) {
        const Pair pair = connected_pair();
        of(map.owner(channel, a)).data.push_back({.host = b, .channel = channel, .fd = pair.first});
        of(map.owner(channel, b))
            .data.push_back({.host = a, .channel = channel, .fd = pair.second});
      }
      if (tree_parent(b) != a) continue;
      const Pair pair = connected_pair();
      const auto [up, down] = seals_pair();
      of(map.owner(0, a)).control.push_back({.host = b, .fd = pair.first, .seals = up});
      of(map.owner(0, b)).control.push_back({.host = a, .fd = pair.second, .seals = down});
    }
  }
  return links;
}

// Of the world, by rank.
inline std::vector<Connections> link_world(const Hosts& hosts, int size) {
  std::vector<int> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(rank);
  std::vector<SetLinks> links = link_set(hosts, all, size);
  std::vector<Connections> world(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    Connections& own = world[static_cast<std::size_t>(rank)];
    own.hosts = hosts;
    own.world = std::move(links[static_cast<std::size_t>(rank)]);
  }
  for (const auto& host : hosts) {
    std::vector<int> doorbells(static_cast<std::size_t>(size), -1);
    for (const int rank : host) {
      doorbells[static_cast<std::size_t>(rank)] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    }
    for (const int rank : host) {
      for (const int doorbell : doorbells) {
        world[static_cast<std::size_t>(rank)].doorbells.push_back(
            doorbell < 0 ? -1 : fcntl(doorbell, F_DUPFD_CLOEXEC, 3));
      }
    }
    for (const int doorbell : doorbells) {
      if (doorbell >= 0) close(doorbell);
    }
  }
  for (std::size_t a = 0; a < hosts.size(); ++a) {
    for (std::size_t b = a + 1; b < hosts.size(); ++b) {
      const Pair pair = connected_pair();
      const auto leader = [&](std::size_t host) -> Connections& {
        return world[static_cast<std::size_t>(hosts[host].front())];
      };
      const auto [left, right] = seals_pair();
      leader(a).news.push_back({.host = static_cast<int>(b), .fd = pair.first, .seals = left});
      leader(b).news.push_back({.host = static_cast<int>(a), .fd = pair.second, .seals = right});
    }
  }
  return world;
}

}  // namespace hvd::test
