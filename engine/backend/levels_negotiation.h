// How the ranks of a process set connect for two levels over NCCL, when these are first wanted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/device_channel.h"
#include "backend/nccl_levels.h"
#include "backend/nccl_negotiation.h"

namespace hvd {

// Why a set on several hosts cannot have two levels; none if it can, or needs none.
std::optional<std::string> levels_obstacle(const HostMap& hosts);
// True on one host, or with one rank on each.
bool has_one_level(const HostMap& hosts);

class LevelsNegotiation {
 public:
  // `group` outlives this; `timeout_s`: for NCCL to connect.
  LevelsNegotiation(const DeviceGroup& group, const HostMap& hosts, double timeout_s)
      : levels_(hosts, group.place.rank), connection_(group, timeout_s) {}

  // Gives each channel its two communicators.
  void begin(const DeviceChannels& channels);
  // True at the end, and before the beginning. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  bool has_begun() const { return has_begun_; }
  // Null where the set has one level.
  const NcclLevels* levels() const { return are_connected_ ? &levels_ : nullptr; }
  // Why there are none, if the user should know.
  const std::optional<std::string>& obstacle() const { return obstacle_; }

 private:
  const NcclLevels levels_;
  NcclNegotiation connection_;
  std::optional<std::string> obstacle_;
  const DeviceChannels* channels_ = nullptr;
  bool has_begun_ = false;
  bool is_connecting_ = false;
  bool are_connected_ = false;
};

}  // namespace hvd
