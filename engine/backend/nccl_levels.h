// Allreduce and allgather over NCCL in steps, on two levels: `local`, the ranks of a host, and
// `cross`, the ranks with the same place on every host. All ranks of a host exchange data with
// other hosts at the same time, each its own share. So every byte goes to each host once.
//
// Allreduce: a reduce-scatter on the host, an allreduce of each share over the hosts, an allgather
// on the host. Allgather: each rank sends its rows to the other hosts, then each host shares all
// rows among its ranks. All hosts must have the same number of ranks.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "backend/device_channel.h"
#include "backend/nccl_call.h"
#include "backend/nccl_negotiation.h"
#include "backend/nccl_reductions.h"
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

  // The number of steps, which follow one another in the stream.
  static int step_count(Kind kind) { return kind == Kind::kAllreduce ? 3 : 2; }
  // The communicator for all calls of a step.
  static NcclCommunicator& communicator(Kind kind, int step, const DeviceChannel& channel);
  // Within a group.
  void start_allreduce(int step, const NcclReduction& reduction,
                       const DeviceChannel& channel) const;
  void start_allgather(int step, const NcclCall& call, const DeviceChannel& channel) const;

 private:
  // What a rank of the host reduces: each rank one share, and the last rank also the rest.
  struct Shares {
    std::size_t count;  // of elements
    std::size_t rest;
  };

  Shares shares_of(const NcclReduction& reduction) const;
  void reduce_on_host(const NcclReduction& reduction, const DeviceChannel& channel) const;
  void reduce_over_hosts(const NcclReduction& reduction, const DeviceChannel& channel) const;
  void share_on_host(const NcclReduction& reduction, const DeviceChannel& channel) const;
  void gather_over_hosts(const NcclCall& call, const DeviceChannel& channel) const;
  void gather_on_host(const NcclCall& call, const DeviceChannel& channel) const;
  bool is_one_piece(int host, const std::vector<std::int64_t>& rows) const;

  const HostMap hosts_;
  int local_rank_ = 0;
};

// Why a set on several hosts cannot have two levels; none if it can, or needs none.
std::optional<std::string> levels_obstacle(const HostMap& hosts);
// True on one host, or with one rank on each.
bool has_one_level(const HostMap& hosts);

// How the ranks of a process set connect for two levels over NCCL, before the first use of them.
class LevelsNegotiation : public Negotiation {
 public:
  // `timeout_s`: for NCCL to connect.
  LevelsNegotiation(const DeviceGroup& group, const HostMap& hosts, double timeout_s)
      : Negotiation(group), levels_(hosts, group.place.rank), connection_(group, timeout_s) {}

  // Gives each channel its two communicators. The user should know of an obstacle.
  void begin(const DeviceChannels& channels);
  // Null where the set has one level.
  const NcclLevels* levels() const { return are_connected_ ? &levels_ : nullptr; }

 private:
  void end(const DeviceChannels& channels);

  const NcclLevels levels_;
  NcclNegotiation connection_;
  bool are_connected_ = false;
};

}  // namespace hvd
