// Which way bytes go from every rank to every rank of several hosts.
//
// A rank sends what it has for another host on one link, its own channel. There the channel's
// owner takes what is for itself straight from the link, and passes the rest on over shared memory.
// For the rest to come first, all that is for owners comes last, over all of a bucket. Hosts turn
// to the next host first and members to the next member, so that at any time the takers differ.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "collective/cluster_exchange.h"
#include "collective/host_map.h"
#include "collective/links.h"

namespace hvd {

// What ranks give each other of one tensor: for each pair a list of pieces, of whose lengths both,
// and all ranks of both hosts, think the same.
class PairwiseParts {
 public:
  // A piece as this rank sees it: `in` if it is the giver, `out` if it is the taker, else a length.
  using UsePiece = std::function<void(const View& piece)>;

  virtual ~PairwiseParts() = default;
  virtual void for_each_piece(int giver, int taker, const UsePiece& use) const = 0;
};

struct OwnPlace {
  int rank = 0;    // in the set
  int member = 0;  // among the ranks of this host
};

// Describes a bucket to `exchange`, which was cleared.
void describe_alltoall(const HostMap& map, Links& links, OwnPlace own,
                       std::span<const PairwiseParts* const> bucket, ClusterExchange& exchange);

// Calls use(host, channel, giver) for every rank of other hosts whose channel `member` owns on this
// host, in the order in which it shares what comes from them.
template <typename Use>
void for_each_giver(const HostMap& map, int member, Use&& use) {
  map.for_each_other([&](int host) {
    for (int channel = 0; channel < map.members(host); ++channel) {
      if (map.owner_index(channel, map.own) != member) continue;
      use(host, channel, map.hosts[host][channel]);
    }
  });
}

}  // namespace hvd
