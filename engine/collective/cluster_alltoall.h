// The routes of bytes from every rank to every rank of several hosts.
//
// A rank sends its bytes for another host on one link, its own channel. On the other host the
// channel's owner receives its own bytes directly into its tensors, and passes the other bytes on
// over shared memory. In a bucket the bytes for owners come last, after the bytes to pass on. Each
// host starts with the next host, and each member with the next member, so that at any time the
// receivers differ.
#pragma once

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

// Calls use(host, channel, giver) for every rank of another host with a channel that `member` owns
// on this host. `member` passes their data on in this order.
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
