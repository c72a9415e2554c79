// What an engine is told about GPU memory: what reaches it, and what the user wants.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/request.h"
#include "core/log.h"
#include "gpu/gpu.h"

namespace hvd {

// Which way the bytes of GPU tensors go.
enum class DeviceRoute : std::uint8_t {
  kAny = 0,   // NCCL where all ranks can, else memory that ranks of a host share, else the host
  kNccl = 1,  // NCCL, or an error
  kHost = 2,  // through host memory, over what carries host tensors
};

struct DeviceConfig {
  std::array<DeviceRoute, kKindCount> routes{};
  std::array<bool, kKindCount> is_hierarchical{};  // on two levels over NCCL, see nccl_levels.h
  int streams = 1;          // with a communicator each, that buckets take in turn
  int default_device = 0;   // of a rank that takes part without a tensor of its own
  double timeout_s = 30.0;  // for ranks to connect over NCCL
  // Of memory that ranks share, a half: what travels at a time.
  std::size_t ipc_pass_bytes = 16UL << 20;
  bool is_one_host = false;  // all ranks of the set are on this one
};

struct DevicePlane {
  std::shared_ptr<GpuAccess> gpus;  // null: GPU tensors are refused
  DeviceConfig config;
};

}  // namespace hvd
