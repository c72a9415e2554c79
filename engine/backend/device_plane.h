// The engine's configuration for GPU memory: the access to it, and the user's choices.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "control/request.h"
#include "gpu/gpu.h"

namespace hvd {

// The route of the bytes of GPU tensors.
enum class DeviceRoute : std::uint8_t {
  kAny = 0,   // NCCL where all ranks can, else memory that ranks of a host share, else the host
  kNccl = 1,  // NCCL, or an error
  kHost = 2,  // through host memory, over the backend for host tensors
};

struct DeviceConfig {
  std::array<DeviceRoute, kKindCount> routes{};
  std::array<bool, kKindCount> is_hierarchical{};  // on two levels over NCCL, see nccl_levels.h
  int streams = 1;           // with a communicator each, that buckets take in turn
  int default_device = 0;    // of a rank that takes part without a tensor of its own
  double timeout_s = 120.0;  // for ranks to connect over NCCL
  // NCCL takes ranks on one GPU for ranks on two hosts if they differ in this; 0: the host's own.
  std::uint64_t nccl_host = 0;
  bool may_share_gpu = false;  // the user allows NCCL to run several ranks on one GPU
  // Half of the memory that ranks share: so many bytes travel at a time.
  std::size_t ipc_pass_bytes = 16UL << 20;
  bool is_one_host = false;  // all ranks of the set are on this one
};

struct DevicePlane {
  std::shared_ptr<GpuAccess> gpus;  // null: GPU tensors are refused
  // Whether it is the turn of the set's bucket among those of all sets, see negotiation_table.h.
  std::function<bool()> may_launch = [] { return true; };
  DeviceConfig config;
};

}  // namespace hvd
