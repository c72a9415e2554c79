// What all parts of an engine know of its world: the configuration, the hosts, and the words in
// shared memory by which ranks see each other's state.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "control/alarms.h"
#include "runtime/engine_config.h"
#include "transport/presence.h"
#include "transport/shared_space.h"

namespace hvd {

struct World {
  // `hosts` and `doorbells`: see Connections.
  World(EngineConfig given, SharedSpace& space, std::vector<std::vector<int>> hosts_of_world = {},
        std::vector<int> doorbells = {});

  bool spans_hosts() const { return !hosts.empty(); }
  // Is this rank the first of its host?
  bool leads_host() const;
  std::string peer_name(int rank) const;
  std::string peer_names(const std::vector<int>& ranks) const;

  const EngineConfig config;
  const std::vector<std::vector<int>> hosts;  // world ranks of each; empty: there is one host
  const std::shared_ptr<Region> region;       // of presence and alarms
  Presence presence;
  Alarms alarms;
};

}  // namespace hvd
