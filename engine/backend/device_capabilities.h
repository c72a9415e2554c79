// The capabilities that ranks exchange before their first collective on GPU memory, and decisions
// that follow from them. Pure.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/device_plane.h"

namespace hvd {

// Of one rank.
struct DeviceCapabilities {
  std::int32_t nccl_version = 0;  // 0: no NCCL
  std::int32_t streams = 1;
  std::array<DeviceRoute, kKindCount> routes{};
  std::array<bool, kKindCount> is_hierarchical{};
  cuda::Uuid uuid{};            // of its GPU
  std::uint64_t nccl_host = 0;  // as in DeviceConfig
  bool may_share_gpu = false;
  std::string problem = {};  // why it has no NCCL
};

// As bytes, the same number for every rank. A long problem is cut off.
std::vector<std::byte> write_capabilities(const DeviceCapabilities& capabilities);
// Throws BadMessage.
DeviceCapabilities read_capabilities(std::span<const std::byte> bytes);

DeviceCapabilities capabilities_of(const Gpu& gpu, const DeviceConfig& config, int device);

// Why these ranks cannot use NCCL among themselves; none if they can.
std::optional<std::string> nccl_obstacle(std::span<const DeviceCapabilities> ranks,
                                         std::span<const std::string> names);
// "rank 0 and rank 2 share one GPU", for each GPU that several ranks use.
std::vector<std::string> shared_gpus(std::span<const DeviceCapabilities> ranks,
                                     std::span<const std::string> names);
// The route that all ranks take: the host if one rank wants it, else NCCL if one rank insists.
DeviceRoute common_route(std::span<const DeviceCapabilities> ranks, Kind kind);
// True only where all ranks want it.
bool is_hierarchical(std::span<const DeviceCapabilities> ranks, Kind kind);
int common_streams(std::span<const DeviceCapabilities> ranks);

}  // namespace hvd
