// What the ranks of a process set do before their first collective on GPU memory: they exchange
// capabilities, and connect over NCCL if all can.
//
// Messages go over the backend that moves host tensors, so this works wherever that works. All
// ranks learn what has failed on one of them, and all use another way then.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/device_capabilities.h"
#include "backend/device_channel.h"
#include "backend/nccl_negotiation.h"

namespace hvd {

class DeviceNegotiation {
 public:
  // Both outlive this.
  DeviceNegotiation(const DeviceGroup& group, const DeviceConfig& config)
      : group_(group), config_(config), connection_(group, config.timeout_s) {}

  // This rank's GPU is `device`.
  void begin(int device);
  // True at the end. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  const std::vector<DeviceCapabilities>& capabilities() const { return capabilities_; }
  // Why there is no NCCL; none if there is.
  const std::optional<std::string>& obstacle() const { return obstacle_; }
  // Warnings for the user about GPUs that several ranks use.
  std::vector<std::string> warnings() const;
  DeviceChannels take_channels() { return std::move(channels_); }

 private:
  enum class Step { kCapabilities, kConnecting, kDone };

  void read_all_capabilities();
  void end_connecting();

  const DeviceGroup& group_;
  const DeviceConfig& config_;
  int device_ = 0;
  Step step_ = Step::kDone;
  HostAllgather exchange_;
  NcclNegotiation connection_;
  std::vector<DeviceCapabilities> capabilities_;
  std::optional<std::string> obstacle_;
  DeviceChannels channels_;
};

}  // namespace hvd
