// A stream of a process set on its GPU, and the communicators for work in it.
#pragma once

#include <memory>
#include <vector>

#include "core/clock.h"
#include "gpu/cuda_objects.h"
#include "gpu/device_memory.h"
#include "gpu/nccl_communicator.h"

namespace hvd {

constexpr auto kLookInterval = std::chrono::microseconds(100);  // while a device ends its work

struct DeviceChannel {
  CudaStream stream;
  std::unique_ptr<NcclCommunicator> communicator;  // of all ranks of the set
  // Of the two levels, made when they are first wanted: the ranks of this host, and the ranks of
  // all hosts with this rank's local rank.
  std::unique_ptr<NcclCommunicator> local;
  std::unique_ptr<NcclCommunicator> cross;
  DeviceBlockPtr packed;  // for small tensors that are reduced as one, one bucket after the other

  DeviceChannel(const CudaDriver& driver, int device) : stream(driver, device) {}
};
using DeviceChannels = std::vector<std::unique_ptr<DeviceChannel>>;

// Throws Error(kSystem) when something on one of them has failed.
void check_channels(const DeviceChannels& channels);
// Together with the other ranks, within `limit` for each communicator.
void leave_channels(const DeviceChannels& channels, Nanoseconds limit) noexcept;
// Ends all work on them. Afterwards no work there touches a tensor, unless the program's own
// streams delay it for longer than a second.
void abort_channels(const DeviceChannels& channels) noexcept;

}  // namespace hvd
