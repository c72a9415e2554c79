// Which way the bytes of broadcasts, allgathers and alltoalls go between the ranks of several
// hosts: describes a bucket to a ClusterExchange.
//
// What a rank gives leaves its host on the channel that bears its number among the host's members,
// and arrives with that channel's owner on the other host, who shares it there.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "collective/cluster_exchange.h"
#include "collective/host_map.h"
#include "collective/links.h"

namespace hvd {

class ClusterRoutes {
 public:
  // `rank`, `size`: in the set; `member`: among the ranks of this host.
  ClusterRoutes(const HostMap& map, Links& links, ClusterExchange& exchange, int rank, int member);

  // From the root's host along a binomial tree of the hosts, passed on while it arrives.
  void describe_broadcasts(std::span<const Work> works);
  // Every host's data crosses each link once.
  void describe_allgathers(std::span<const Work> works);
  // To every host on one link: first what its owner passes on, then what is for the owner.
  void describe_alltoalls(std::span<const Work> works);

 private:
  // A view on its way into a member's stream.
  struct Source {
    View view;
    Arrival arrival;
  };
  class Splits;

  void describe(const Work& broadcast);
  void describe_gather(const Work& work);
  void share_in_turns(int member, const std::vector<Source>& sources);
  void send_splits(const Work& work, const Splits& splits, bool for_owners);
  void share_splits(const Work& work, const Splits& splits);
  void share_arrivals(const Work& work, const Splits& splits, int member, int giver,
                      const Arrival& arrival);
  void receive_splits(const Work& work, const Splits& splits);

  int own_rank(int member) const { return map_.hosts[map_.own][member]; }
  // Memory for what this rank only passes on.
  std::byte* spare(std::size_t size_bytes);
  // Calls use(host, channel, giver) for every rank of other hosts whose channel `member` owns here.
  template <typename Use>
  void for_each_giver(int member, Use&& use) const;

  const HostMap& map_;
  Links& links_;
  ClusterExchange& exchange_;
  const int rank_;
  const int member_;
  std::vector<std::unique_ptr<std::byte[]>> spares_;
};

}  // namespace hvd
