// The routes of broadcasts, allgathers and alltoalls between the ranks of several hosts: describes
// a bucket to a ClusterExchange.
//
// A rank sends its data to another host on its own channel: the channel with the rank's number
// among the members of its host. On the other host the channel's owner receives the data and passes
// it on.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "collective/cluster_alltoall.h"
#include "collective/cluster_exchange.h"
#include "collective/host_map.h"
#include "collective/links.h"

namespace hvd {

class ClusterRoutes {
 public:
  ClusterRoutes(const HostMap& map, Links& links, OwnPlace own, ClusterExchange& exchange);

  // From the root's host along a binomial tree of the hosts, passed on while it arrives.
  void describe_broadcasts(std::span<const Work> works);
  // Every host's data crosses each link once.
  void describe_allgathers(std::span<const Work> works);
  // See collective/cluster_alltoall.h.
  void describe_alltoalls(std::span<const Work> works);

 private:
  // A view on its way into a member's stream.
  struct Source {
    View view;
    Arrival arrival;
  };

  void describe(const Work& broadcast);
  void describe_gather(const Work& work);
  void share_in_turns(int member, const std::vector<Source>& sources);

  // Memory for bytes that this rank only passes on.
  std::byte* spare(std::size_t size_bytes);

  const HostMap& map_;
  Links& links_;
  const OwnPlace own_;
  ClusterExchange& exchange_;
  std::vector<std::unique_ptr<std::byte[]>> spares_;
};

}  // namespace hvd
