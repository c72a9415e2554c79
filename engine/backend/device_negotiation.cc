#include "backend/device_negotiation.h"

#include <algorithm>

namespace hvd {

DeviceNegotiation::DeviceNegotiation(const Gpu& gpu, const DeviceConfig& config, Backend& host,
                                     Place place, std::vector<std::string> names)
    : gpu_(gpu),
      config_(config),
      host_(host),
      place_(place),
      names_(std::move(names)),
      connection_(gpu, host, place, names_, config.timeout_s) {}

void DeviceNegotiation::begin(int device) {
  device_ = device;
  const DeviceCapabilities own = capabilities_of(gpu_, config_, device);
  gather_.begin(host_, write_capabilities(own), place_.size);
  step_ = Step::kCapabilities;
}

bool DeviceNegotiation::advance(PeerWait& blocked) {
  while (step_ != Step::kDone) {
    if (step_ == Step::kCapabilities) {
      if (!host_.advance(blocked)) return false;
      read_all_capabilities();
    } else {
      if (!connection_.advance(blocked)) return false;
      end_connecting();
    }
  }
  return true;
}

void DeviceNegotiation::read_all_capabilities() {
  for (int rank = 0; rank < place_.size; ++rank) {
    cards_.push_back(gather_.read(rank, read_capabilities));
  }
  obstacle_ = nccl_obstacle(cards_, names_);
  const bool is_wanted = std::ranges::any_of(cards_.front().routes, [&](const auto& route) {
    const auto kind = static_cast<Kind>(&route - cards_.front().routes.data());
    return common_route(cards_, kind) != DeviceRoute::kHost;
  });
  if (!is_wanted) obstacle_.reset();
  if (obstacle_ || !is_wanted) {
    step_ = Step::kDone;
    return;
  }
  const auto streams = static_cast<std::size_t>(common_streams(cards_));
  connection_.begin(device_, std::vector(streams, NcclSeat{.giver = 0, .place = place_}));
  step_ = Step::kConnecting;
}

void DeviceNegotiation::end_connecting() {
  obstacle_ = connection_.obstacle();
  for (auto& communicator : connection_.take()) {
    channels_.push_back(std::make_unique<DeviceChannel>(gpu_.driver(), device_));
    channels_.back()->communicator = std::move(communicator);
  }
  step_ = Step::kDone;
}

std::vector<std::string> DeviceNegotiation::warnings() const {
  std::vector<std::string> texts = shared_gpus(cards_, names_);
  for (std::string& text : texts)
    text += "; there are more ranks than GPUs, or ranks chose the same";
  return texts;
}

}  // namespace hvd
