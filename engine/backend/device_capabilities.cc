#include "backend/device_capabilities.h"

#include <algorithm>
#include <map>

#include "core/text.h"
#include "core/wire.h"

namespace hvd {

namespace {

constexpr std::size_t kProblemBytes = 160;
constexpr int kRoutes = 3;
constexpr std::int32_t kMostVersion = 1'000'000;
constexpr std::int32_t kMostStreams = 1024;  // the setting's most is less

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

// The first release that runs several ranks on one GPU if NCCL_MULTI_RANK_GPU_ENABLE asks for it.
constexpr std::int32_t kSharesGpus = 23000;

template <typename KeyOf>
std::vector<std::string> sharers(std::span<const DeviceCapabilities> ranks,
                                 std::span<const std::string> names, KeyOf&& key_of) {
  std::map<decltype(key_of(ranks[0])), std::vector<std::string>> users;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    users[key_of(ranks[rank])].push_back(names[rank]);
  }
  std::vector<std::string> texts;
  for (const auto& [_, sharing] : users) {
    if (sharing.size() > 1) texts.push_back(joined(sharing) + " share one GPU");
  }
  return texts;
}

// Those of ranks that NCCL finds on one GPU.
std::vector<std::string> shared_in_nccl(std::span<const DeviceCapabilities> ranks,
                                        std::span<const std::string> names) {
  const auto is_allowed = [](const DeviceCapabilities& each) {
    return each.may_share_gpu && each.nccl_version >= kSharesGpus;
  };
  if (std::ranges::all_of(ranks, is_allowed)) return {};
  return sharers(ranks, names, [](const DeviceCapabilities& each) {
    return std::pair(each.uuid.bytes, each.nccl_host);
  });
}

}  // namespace

DeviceCapabilities capabilities_of(const Gpu& gpu, const DeviceConfig& config, int device) {
  return {.nccl_version = gpu.nccl() == nullptr ? 0 : gpu.nccl()->version(),
          .streams = config.streams,
          .routes = config.routes,
          .is_hierarchical = config.is_hierarchical,
          .uuid = gpu.driver().uuid_of(device),
          .nccl_host = config.nccl_host,
          .may_share_gpu = config.may_share_gpu,
          .problem = gpu.nccl_problem()};
}

std::vector<std::byte> write_capabilities(const DeviceCapabilities& capabilities) {
  WireWriter writer;
  writer.put(capabilities.nccl_version);
  writer.put(capabilities.streams);
  writer.put(capabilities.routes);
  writer.put(capabilities.is_hierarchical);
  writer.put(capabilities.uuid.bytes);
  writer.put(capabilities.nccl_host);
  writer.put(capabilities.may_share_gpu);
  char problem[kProblemBytes] = {};
  copy_text(problem, capabilities.problem);
  writer.put(problem);
  return writer.take();
}

DeviceCapabilities read_capabilities(std::span<const std::byte> bytes) {
  WireReader reader("capabilities", bytes);
  DeviceCapabilities capabilities;
  capabilities.nccl_version = reader.get<std::int32_t>("nccl_version", 0, kMostVersion);
  capabilities.streams = reader.get<std::int32_t>("streams", 1, kMostStreams);
  for (DeviceRoute& route : capabilities.routes)
    route = reader.get_enum<DeviceRoute>("routes", kRoutes);
  for (bool& is : capabilities.is_hierarchical) is = reader.get_flag("is_hierarchical");
  for (auto& byte : capabilities.uuid.bytes) byte = reader.get<std::uint8_t>("uuid");
  capabilities.nccl_host = reader.get<std::uint64_t>("nccl_host");
  capabilities.may_share_gpu = reader.get_flag("may_share_gpu");
  capabilities.problem = reader.get_cells("problem", kProblemBytes);
  reader.end();
  return capabilities;
}

std::vector<std::string> shared_gpus(std::span<const DeviceCapabilities> ranks,
                                     std::span<const std::string> names) {
  return sharers(ranks, names, [](const DeviceCapabilities& each) { return each.uuid.bytes; });
}

std::optional<std::string> nccl_obstacle(std::span<const DeviceCapabilities> ranks,
                                         std::span<const std::string> names) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].nccl_version == 0) return names[rank] + ": " + ranks[rank].problem;
  }
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].nccl_version == ranks[0].nccl_version) continue;  // NCCL refuses others
    return names[rank] + " has NCCL " + std::to_string(ranks[rank].nccl_version) + ", " + names[0] +
           " has " + std::to_string(ranks[0].nccl_version);
  }
  const std::vector<std::string> shared = shared_in_nccl(ranks, names);
  if (!shared.empty()) return shared.front() + ", which NCCL refuses";
  return std::nullopt;
}

DeviceRoute common_route(std::span<const DeviceCapabilities> ranks, Kind kind) {
  DeviceRoute common = DeviceRoute::kAny;
  for (const DeviceCapabilities& each : ranks) {
    common = std::max(common, each.routes[static_cast<std::size_t>(kind)]);
  }
  return common;
}

bool is_hierarchical(std::span<const DeviceCapabilities> ranks, Kind kind) {
  return std::ranges::all_of(ranks, [kind](const DeviceCapabilities& capabilities) {
    return capabilities.is_hierarchical[static_cast<std::size_t>(kind)];
  });
}

int common_streams(std::span<const DeviceCapabilities> ranks) {
  int least = ranks.front().streams;
  for (const DeviceCapabilities& each : ranks) least = std::min(least, each.streams);
  return std::max(1, least);
}

}  // namespace hvd
