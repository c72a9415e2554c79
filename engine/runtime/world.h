// The world of an engine, for all its parts: the configuration, the hosts, and the words in shared
// memory that show the ranks' states.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "control/alarms.h"
#include "control/negotiation_table.h"
#include "core/log.h"
#include "runtime/link_formats.h"
#include "runtime/trace_place.h"
#include "transport/presence.h"
#include "transport/shared_space.h"

namespace hvd {

// The configuration of an engine.
struct EngineConfig {
  int rank = 0;
  int size = 1;
  int local_size = 1;        // ranks on this host
  int generation = 0;        // of the world in this process; tells handles of two worlds apart
  int usable_cores = 1;      // for all ranks of this host together
  Tuning tuning;             // at the start
  LinkFormats formats;       // of reductions between hosts
  int link_connections = 1;  // between two hosts, at least
  bool fuse_groups = true;   // with other tensors
  std::uint32_t cache_capacity = 1024;
  bool stall_check = true;
  double stall_check_time_s = 60.0;
  double stall_shutdown_time_s = 0.0;  // 0: never
  bool is_debug = false;               // check tensors; equal on all ranks
  std::uint32_t debug_interval = 100;  // one of so many results is compared
  LogConfig log;
  TraceConfig trace;
  std::vector<std::string> peer_names;  // by rank: "rank 1 (pid 4711 on localhost)"
  std::vector<std::string> peer_hosts;  // by rank: "localhost"

  bool has_spare_cores() const { return usable_cores > local_size; }
};

// Throws Error for what an allreduce cannot use.
void check_tuning(const BucketTuning& tuning);

// Checks the configuration and fills in `local_size`. `hosts`: see Connections.
EngineConfig completed(EngineConfig config, const std::vector<std::vector<int>>& hosts);

struct World {
  // `hosts` and `doorbells`: see Connections.
  World(EngineConfig given, SharedSpace& space, std::vector<std::vector<int>> hosts_of_world = {},
        std::vector<int> doorbells = {});

  bool spans_hosts() const { return !hosts.empty(); }
  // Whether this rank is the first of its host.
  bool leads_host() const;
  std::string peer_name(int rank) const;
  std::string peer_names(const std::vector<int>& ranks) const;

  const EngineConfig config;
  const std::vector<std::vector<int>> hosts;  // world ranks of each; empty: there is one host
  const std::shared_ptr<Region> region;       // of what follows
  Presence presence;
  Alarms alarms;
  std::atomic<std::uint64_t>* const launches;  // see NegotiationConfig
};

}  // namespace hvd
