// What the ranks of a process set do before their first collective on GPU memory: they exchange
// capabilities, and connect over NCCL if all can.
//
// Messages go over the backend that moves host tensors, so this needs no other connection. If one
// rank fails, all ranks learn the reason, and all use another route.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backend/device_capabilities.h"
#include "backend/device_channel.h"
#include "backend/nccl_negotiation.h"

namespace hvd {

class DeviceNegotiation : public Negotiation {
 public:
  // Both outlive this.
  DeviceNegotiation(const DeviceGroup& group, const DeviceConfig& config)
      : Negotiation(group), config_(config), connection_(group, config.timeout_s) {}

  // This rank's GPU is `device`. Without an obstacle the ranks are connected over NCCL at the end.
  void begin(int device);

  const std::vector<DeviceCapabilities>& capabilities() const { return capabilities_; }
  // Warnings for the user about GPUs that several ranks use.
  std::vector<std::string> warnings() const;
  DeviceChannels take_channels() { return std::move(channels_); }

 private:
  void read_all_capabilities();
  void end_connecting();

  const DeviceConfig& config_;
  int device_ = 0;
  HostAllgather exchange_;
  NcclNegotiation connection_;
  std::vector<DeviceCapabilities> capabilities_;
  DeviceChannels channels_;
};

}  // namespace hvd
