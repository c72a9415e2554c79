// The state of one process set in the engine of one rank: the negotiation table, the cells for
// data, and the bucket under way. Sets are independent: while one waits for a rank, others go on.
//
// Made when this rank first submits to the set, deleted when the set is removed. `tensors` and
// `auto_names` need the engine's mutex. The members below them belong to the holder of the progress
// role.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device_plane.h"
#include "collective/host_map.h"
#include "control/negotiation_table.h"
#include "control/relay.h"
#include "core/log.h"
#include "runtime/connections.h"
#include "runtime/stall_log.h"
#include "runtime/tensor_table.h"
#include "trace/events.h"
#include "transport/peers.h"
#include "transport/shared_space.h"

namespace hvd {

struct ProcessSetConfig {
  int id = 0;                     // of the process set
  std::vector<int> members;       // world rank by set rank
  HostMap hosts;                  // of the set
  NegotiationConfig negotiation;  // without the fields that follow from these
  DevicePlane devices;
  std::vector<std::string> names = {};  // of the members
  LogConfig log = {};
};

// The hosts that have some of `members`, as set ranks; `rank` is the set rank of this process.
HostMap hosts_of_set(const std::vector<std::vector<int>>& hosts, const std::vector<int>& members,
                     int rank);

// What debug mode has counted in a process set, equal on all of its ranks.
struct DebugState {
  std::uint64_t common_results = 0;  // that should be equal on all ranks
  std::uint64_t comparisons = 0;     // begun
};

class ProcessSetContext {
 public:
  // Bytes of shared memory for a set of `size` ranks.
  static std::size_t region_bytes(int size);

  ProcessSetContext(ProcessSetConfig config, std::shared_ptr<Region> region,
                    const Presence& presence, SetLinks links);

  int size() const { return static_cast<int>(members.size()); }
  bool spans_hosts() const { return hosts.host_count() > 1; }
  bool is_leader() const { return rank == hosts.hosts[static_cast<std::size_t>(hosts.own)][0]; }
  // -1: not a member.
  int set_rank_of(int world_rank) const;
  // Whether this rank has work in this set, or listens to other hosts.
  bool is_active() const {
    return is_running || pending.load() != 0 ||
           (relay != nullptr && (relay->is_busy() || relay->is_listening()));
  }
  // Whether a step would probably make progress. `may_form`: also a step that forms a bucket.
  bool can_progress(bool may_form) const;
  // Whether the bucket waits until the hosts have agreed when it is launched.
  bool awaits_number() const {
    return is_running && blocked_on.is_for_turn && !negotiation.launch_of(cursor).is_final;
  }
  // For messages. suffix(): " of process set 3"; empty for the world.
  std::string suffix() const;
  std::string title_of(const Entry& entry) const;
  // The last running number of operations like this one.
  std::uint64_t& running_number(const Request& request, Numbering numbering);
  // The world rank of a set rank; -1 for -1.
  int world_rank(int set_rank) const {
    return set_rank < 0 ? -1 : members[static_cast<std::size_t>(set_rank)];
  }
  // The world rank that `wait` is about; this rank where that is unknown.
  int awaited(const PeerWait& wait) const;
  // An event of this set for the flight recorder.
  Event event(EventKind kind, std::int64_t time_ns, std::uint32_t subject,
              std::uint64_t value) const {
    return {.time_ns = time_ns,
            .kind = kind,
            .process_set = static_cast<std::uint16_t>(id),
            .subject = subject,
            .value = value};
  }
  // Ends the work on GPUs: together with the other ranks, if the world has not failed.
  void leave_devices(bool is_well);
  // Ends all connections to other hosts.
  void disconnect();
  void close_copies();  // in a forked child

  const int id;
  const std::vector<int> members;
  const int rank;  // this process' set rank
  const HostMap hosts;
  const std::vector<int> local;  // world ranks of the members on this host
  const std::shared_ptr<Region> region;
  NegotiationTable negotiation;
  Peers peers;
  const std::shared_ptr<DataPlane> data_plane;  // null: the engine moves the data
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Relay> relay;  // of a leader, where the set spans hosts
  TensorTable tensors;
  // By kind, single and grouped; last: of all kinds.
  std::vector<std::uint64_t> running_numbers;
  std::atomic<int> pending{0};  // entries that are not done

  std::atomic<bool> is_running{false};  // a bucket
  std::uint32_t cursor = 0;             // next bucket to run
  std::uint32_t buckets_told = 0;       // the leader has rung its host's ranks for these
  std::vector<BucketItem> items;
  std::vector<BucketItem> tensor_items;
  std::vector<Entry*> entries;
  std::vector<Work> works;  // grows only; the bucket has the first works_count
  std::size_t works_count = 0;
  std::size_t bucket_bytes = 0;  // of the works, on this rank
  std::uint64_t link_bytes = 0;  // of the backend, when the last bucket ended
  bool must_sync = false;        // some rank is absent: no rank may run ahead of it
  PeerWait blocked_on;
  std::int64_t blocked_since_ns = 0;
  std::int64_t waited_ns = 0;       // in the running bucket
  std::int64_t look_at_ns = 0;      // next, while blocked_on.is_polled
  std::int64_t bucket_done_ns = 0;  // when the last one was
  StallState stall;                 // of StallMonitor
  DebugState debug;                 // of DebugChecks
};

}  // namespace hvd
