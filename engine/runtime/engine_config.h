// What an engine is told when it starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/negotiation_table.h"
#include "core/log.h"
#include "runtime/trace_place.h"

namespace hvd {

struct EngineConfig {
  int rank = 0;
  int size = 1;
  int local_size = 1;       // ranks on this host
  int generation = 0;       // of the world in this process; tells handles of two worlds apart
  int usable_cores = 1;     // that the ranks of this host may use together
  Tuning tuning;            // at the start
  bool fuse_groups = true;  // with other tensors
  std::uint32_t cache_capacity = 1024;
  bool stall_check = true;
  double stall_check_time_s = 60.0;
  double stall_shutdown_time_s = 0.0;  // 0: never
  bool is_debug = false;               // check tensors; equal on all ranks
  std::uint32_t debug_interval = 100;  // compare one of so many results
  LogConfig log;
  TraceConfig trace;
  std::vector<std::string> peer_names;  // by rank: "rank 1 (pid 4711 on localhost)"
  std::vector<std::string> peer_hosts;  // by rank: "localhost"

  bool has_spare_cores() const { return usable_cores > local_size; }
};

// Throws Error for sizes that an allreduce cannot use.
void check_cut(const AllreduceCut& cut);

// Checks the configuration and fills in `local_size`. `hosts`: see Connections.
EngineConfig completed(EngineConfig config, const std::vector<std::vector<int>>& hosts);

}  // namespace hvd
