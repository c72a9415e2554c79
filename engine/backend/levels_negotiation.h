// How the ranks of a process set come to its two levels over NCCL, when these are first wanted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/device_channel.h"
#include "backend/nccl_levels.h"
#include "backend/nccl_negotiation.h"

namespace hvd {

// Why a set has no two levels though it is on several hosts; none if it has, or needs none.
std::optional<std::string> levels_obstacle(const HostMap& hosts);
// On one host, or with one rank on each, one level is all there is.
bool has_one_level(const HostMap& hosts);

class LevelsNegotiation {
 public:
  // `names`: of the ranks of the set; `timeout_s`: for NCCL to connect.
  LevelsNegotiation(const Gpu& gpu, Backend& host, Place place, const HostMap& hosts,
                    std::vector<std::string> names, double timeout_s);

  // Gives each channel its two communicators.
  void begin(const DeviceChannels& channels);
  // True at the end, and before the beginning. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  bool has_begun() const { return has_begun_; }
  // Null where there are none.
  const NcclLevels* levels() const { return are_connected_ ? &levels_ : nullptr; }
  // Why there are none, if that is worth a word.
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
