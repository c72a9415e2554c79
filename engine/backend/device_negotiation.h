// How the ranks of a process set find their way to NCCL, before their first collective on GPU
// memory: they show their cards, and connect if nothing speaks against it.
//
// All of it goes over the backend that moves host tensors, so it works wherever that does. What
// goes wrong on one rank is known to all at the end, and all take the other way.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/device_capabilities.h"
#include "backend/device_channel.h"
#include "backend/host_gather.h"
#include "backend/nccl_negotiation.h"

namespace hvd {

class DeviceNegotiation {
 public:
  // `names`: of the ranks of the set.
  DeviceNegotiation(const Gpu& gpu, const DeviceConfig& config, Backend& host, Place place,
                    std::vector<std::string> names);

  // This rank's GPU is `device`.
  void begin(int device);
  // True at the end. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  const std::vector<DeviceCapabilities>& cards() const { return cards_; }
  // Why there is no NCCL; none if there is.
  const std::optional<std::string>& obstacle() const { return obstacle_; }
  // What the user should hear, once, of who uses which GPU.
  std::vector<std::string> warnings() const;
  DeviceChannels take_channels() { return std::move(channels_); }

 private:
  enum class Step { kCapabilities, kConnecting, kDone };

  void read_all_capabilities();
  void end_connecting();

  const Gpu& gpu_;
  const DeviceConfig& config_;
  Backend& host_;
  const Place place_;
  const std::vector<std::string> names_;
  int device_ = 0;
  Step step_ = Step::kDone;
  HostGather gather_;
  NcclNegotiation connection_;
  std::vector<DeviceCapabilities> cards_;
  std::optional<std::string> obstacle_;
  DeviceChannels channels_;
};

}  // namespace hvd
