#include "runtime/world.h"

#include <algorithm>
#include <utility>

#include "runtime/space_layout.h"

namespace hvd {

World::World(EngineConfig given, SharedSpace& space, std::vector<std::vector<int>> hosts_of_world,
             std::vector<int> doorbells)
    : config(completed(std::move(given), hosts_of_world)),
      hosts(std::move(hosts_of_world)),
      region(space.map(0, SpaceLayout{config.size}.words_bytes())),
      presence(region->data(), config.rank, config.size, std::move(doorbells)),
      alarms(region->data() + SpaceLayout{config.size}.alarms_offset(), config.size) {}

bool World::leads_host() const {
  if (!spans_hosts()) return config.rank == 0;
  return std::ranges::any_of(hosts,
                             [this](const auto& host) { return host.front() == config.rank; });
}

std::string World::peer_name(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < config.peer_names.size() ? config.peer_names[index]
                                          : "rank " + std::to_string(rank);
}

std::string World::peer_names(const std::vector<int>& ranks) const {
  std::string names;
  for (const int rank : ranks) names += (names.empty() ? "" : ", ") + peer_name(rank);
  return names;
}

}  // namespace hvd
