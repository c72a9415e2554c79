// Gives the buckets of GPU tensors of a process set to DeviceBuckets, which is made for the first
// of them. Gives buckets of host tensors, and barriers, to the backend underneath.
//
// The set's objects on GPUs end with leave() (all ranks together, with a deadline) or abort() (a
// rank is lost), which ends calls that wait on the GPU.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device_buckets.h"

namespace hvd {

class DeviceBackend final : public Backend {
 public:
  // `hosts`: where the ranks of the set are; `names`: of the ranks.
  DeviceBackend(std::unique_ptr<Backend> host, DevicePlane plane, Place place, HostMap hosts,
                std::vector<std::string> names, DeviceBuckets::Say say);

  // Throws Error(kSystem) where this rank is absent and has no GPU.
  void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) override;
  void begin_barrier() override;
  bool advance(PeerWait& blocked) override;
  BlockNumber end_block() const override { return host_->end_block(); }
  Nanoseconds pause() const override;
  std::uint64_t link_bytes() const override { return host_->link_bytes(); }
  void add_polls(std::vector<pollfd>& polls) const override { host_->add_polls(polls); }
  bool watch() override;
  bool launches() const override { return devices_ == nullptr || devices_->launches(); }
  void leave() override;
  void abort() override;
  void close_copies() override { host_->close_copies(); }

 private:
  void run_named(const std::function<void()>& step);

  const std::unique_ptr<Backend> host_;
  const DevicePlane plane_;
  const Place place_;
  const HostMap hosts_;
  const std::vector<std::string> names_;
  const DeviceBuckets::Say say_;
  std::unique_ptr<DeviceBuckets> devices_;
  bool is_on_device_ = false;  // the bucket that runs
};

}  // namespace hvd
