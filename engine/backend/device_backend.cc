#include "backend/device_backend.h"

namespace hvd {

DeviceBackend::DeviceBackend(std::unique_ptr<Backend> host, DevicePlane plane, Place place,
                             HostMap hosts, std::vector<std::string> names, DeviceBuckets::Say say)
    : host_(std::move(host)),
      plane_(std::move(plane)),
      place_(place),
      hosts_(std::move(hosts)),
      names_(std::move(names)),
      say_(std::move(say)) {}

void DeviceBackend::begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) {
  is_on_device_ = !works.empty() && works.front().request->memory == Memory::kCuda;
  if (!is_on_device_) {
    host_->begin(kind, works, cut);
    return;
  }
  run_named([&] {
    if (devices_ == nullptr) {
      devices_ = std::make_unique<DeviceBuckets>(plane_, *host_, place_, hosts_, names_, say_);
    }
    devices_->begin(kind, works, cut);
  });
}

void DeviceBackend::begin_barrier() {
  is_on_device_ = false;
  host_->begin_barrier();
}

bool DeviceBackend::advance(PeerWait& blocked) {
  if (!is_on_device_) return host_->advance(blocked);
  bool is_complete = false;
  run_named([&] { is_complete = devices_->advance(blocked); });
  return is_complete;
}

bool DeviceBackend::watch() {
  if (devices_ == nullptr) return false;
  bool is_working = false;
  run_named([&] { is_working = devices_->watch(); });
  return is_working;
}

// Texts of CUDA and NCCL do not name the rank.
void DeviceBackend::run_named(const std::function<void()>& step) {
  const std::string& name = names_[static_cast<std::size_t>(place_.rank)];
  try {
    step();
  } catch (const UnnamedLoss& loss) {
    throw UnnamedLoss(name + ": " + loss.what());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;
    throw Error(error.code(), name + ": " + error.what());
  }
}

Nanoseconds DeviceBackend::pause() const {
  return is_on_device_ ? devices_->pause() : host_->pause();
}

void DeviceBackend::leave() {
  if (devices_ != nullptr) devices_->leave();
}

void DeviceBackend::abort() {
  if (devices_ != nullptr) devices_->abort();
}

}  // namespace hvd
