#include "backend/device_negotiation.h"

#include <algorithm>

namespace hvd {

void DeviceNegotiation::begin(int device) {
  device_ = device;
  const DeviceCapabilities own = capabilities_of(group_.gpu, config_, device);
  exchange_.begin(group_.host, write_capabilities(own), group_.place.size);
  after_bucket([this] { read_all_capabilities(); });
}

void DeviceNegotiation::read_all_capabilities() {
  for (int rank = 0; rank < group_.place.size; ++rank) {
    capabilities_.push_back(exchange_.read(rank, read_capabilities));
  }
  obstacle_ = nccl_obstacle(capabilities_, group_.names);
  const bool is_wanted = std::ranges::any_of(capabilities_.front().routes, [&](const auto& route) {
    const auto kind = static_cast<Kind>(&route - capabilities_.front().routes.data());
    return common_route(capabilities_, kind) != DeviceRoute::kHost;
  });
  if (!is_wanted) obstacle_.reset();
  if (obstacle_ || !is_wanted) return;
  const auto streams = static_cast<std::size_t>(common_streams(capabilities_));
  connection_.begin(device_,
                    std::vector(streams, NcclMembership{.id_giver = 0, .place = group_.place}));
  after(connection_, [this] { end_connecting(); });
}

void DeviceNegotiation::end_connecting() {
  obstacle_ = connection_.obstacle();
  for (auto& communicator : connection_.take()) {
    channels_.push_back(std::make_unique<DeviceChannel>(group_.gpu.driver(), device_));
    channels_.back()->communicator = std::move(communicator);
  }
}

std::vector<std::string> DeviceNegotiation::warnings() const {
  std::vector<std::string> texts = shared_gpus(capabilities_, group_.names);
  for (std::string& text : texts)
    text += "; there are more ranks than GPUs, or ranks chose the same";
  return texts;
}

}  // namespace hvd
