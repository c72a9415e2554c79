// The routes of bytes from every rank to every rank of several hosts.
//
// A rank sends its bytes for another host on one link, its own channel. There the channel's owner
// takes its own bytes straight from the link, and passes the rest on over shared memory. The bytes
// for owners come last in a bucket, so that the rest comes first. Each host starts with the next
// host, and each member with the next member, so that at any time the receivers differ.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "collective/cluster_exchange.h"
#include "collective/host_map.h"
#include "collective/links.h"

namespace hvd {

// The pieces of one tensor that each rank gives to each rank. All ranks of both hosts know the same
// lengths.
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
