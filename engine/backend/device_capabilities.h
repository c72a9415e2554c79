// What ranks tell each other before their first collective on GPU memory, and what follows. Pure.
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
  std::int32_t nccl_version = 0;  // 0: it has none
  std::int32_t streams = 1;
  std::array<DeviceRoute, kKindCount> routes{};
  std::array<bool, kKindCount> is_hierarchical{};
  cuda::Uuid uuid{};         // of its GPU
  std::string problem = {};  // why it has no NCCL
};

// As it travels, with as many bytes from every rank; a long problem is cut.
std::vector<std::byte> write_capabilities(const DeviceCapabilities& card);
// Throws BadMessage.
DeviceCapabilities read_capabilities(std::span<const std::byte> bytes);

DeviceCapabilities capabilities_of(const Gpu& gpu, const DeviceConfig& config, int device);

// Why these ranks cannot use NCCL among themselves; none if they can.
std::optional<std::string> nccl_obstacle(std::span<const DeviceCapabilities> cards,
                                         std::span<const std::string> names);
// "rank 0 and rank 2 share one GPU", for each GPU that several ranks use.
std::vector<std::string> shared_gpus(std::span<const DeviceCapabilities> cards,
                                     std::span<const std::string> names);
// The way that holds for all: the host, if one wants it; NCCL, if one insists.
DeviceRoute common_route(std::span<const DeviceCapabilities> cards, Kind kind);
// Only where all want it.
bool is_hierarchical(std::span<const DeviceCapabilities> cards, Kind kind);
int common_streams(std::span<const DeviceCapabilities> cards);

}  // namespace hvd
