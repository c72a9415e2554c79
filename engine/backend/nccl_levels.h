// Allreduce and allgather over NCCL in steps, on two levels: `local`, the ranks of a host, and
// `cross`, those with the same place on every host. All ranks of a host exchange with other hosts
// at once, each its share, so that every byte goes to each host once.
//
// Allreduce: a reduce-scatter on the host, an allreduce of each share over the hosts, an allgather
// on the host. Allgather: each rank's rows go to the other hosts, then all of them around the host.
// Where every host has as many ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/device_channel.h"
#include "backend/nccl_call.h"
#include "backend/plane_collective.h"
#include "collective/host_map.h"

namespace hvd {

class NcclLevels {
 public:
  // `rank`: in the set.
  NcclLevels(HostMap hosts, int rank);

  // This rank's place in both communicators.
  Place local() const { return {.rank = local_rank_, .size = hosts_.own_members()}; }
  Place cross() const { return {.rank = hosts_.own, .size = hosts_.host_count()}; }
  const HostMap& hosts() const { return hosts_; }

  // How many, one after the other in the stream.
  static int step_count(Kind kind) { return kind == Kind::kAllreduce ? 3 : 2; }
  // Of all calls of a step.
  static NcclCommunicator& communicator(Kind kind, int step, const DeviceChannel& channel);
  // Within a group.
  void start(int step, const NcclCall& call, const DeviceChannel& channel) const;

 private:
  // What a rank of the host reduces: the same from each, and the last one what is left over.
  struct Shares {
    std::size_t count;  // of elements
    std::size_t rest;
  };

  Shares shares_of(const Request& request) const;
  void reduce_on_host(const NcclCall& call, const DeviceChannel& channel) const;
  void reduce_over_hosts(const NcclCall& call, const DeviceChannel& channel) const;
  void share_on_host(const NcclCall& call, const DeviceChannel& channel) const;
  void gather_over_hosts(const NcclCall& call, const DeviceChannel& channel) const;
  void gather_on_host(const NcclCall& call, const DeviceChannel& channel) const;
  bool is_one_piece(int host, const std::vector<std::int64_t>& rows) const;

  const HostMap hosts_;
  int local_rank_ = 0;
};

}  // namespace hvd
