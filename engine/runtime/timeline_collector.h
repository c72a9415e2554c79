// Collects the events of all ranks on rank 0, which writes the timeline. It reads the recorders of
// its own host. The first rank of every other host sends the events of its host's ranks.
//
// One thread at a time, except for receive().
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trace/clock_alignment.h"
#include "trace/timeline.h"
#include "trace/trace_chunk.h"

namespace hvd {

class TimelineCollector {
 public:
  struct Host {
    std::vector<int> ranks;  // the leader first
    std::string name;
  };

  // Throws Error where the file cannot be written.
  TimelineCollector(TimelineConfig config, std::vector<TraceSource> own, std::vector<Host> others);

  // Writes the new events. Returns how full the fullest recorder here was, from 0 to 1. Throws
  // Error.
  double collect();
  bool is_full() const { return timeline_.is_full(); }
  // Whether a bucket is under way, which will end soon.
  bool has_open_bucket() const { return timeline_.has_open_bucket(); }
  // Any thread: a message of a host's leader; its last message is empty. Throws BadMessage.
  void receive(int leader, std::string_view bytes);
  bool have_all_ended();

 private:
  struct Remote {
    std::vector<int> ranks;
    std::string name;
    ClockAlignment clocks;
    std::optional<ClockAlignment::Estimate> used;
    std::vector<TraceChunk> waiting;  // for the first estimate; never written without one
    std::size_t waiting_events = 0;
  };

  void take_in(int leader, TraceChunk chunk);
  void compare(Remote& remote, bool is_other, const TraceChunk& chunk);
  void use_estimate(Remote& remote);
  void write(const TraceChunk& chunk, std::int64_t shift_ns);

  Timeline timeline_;
  std::vector<TraceSource> own_;
  std::map<int, Remote> remotes_;                       // by leader
  std::map<std::pair<int, std::uint32_t>, int> kinds_;  // of labels, by rank
  std::mutex mutex_;
  std::vector<std::pair<int, TraceChunk>> inbox_;  // under mutex_
  std::size_t inbox_bytes_ = 0;
  std::set<int> running_;  // leaders that will send more
};

}  // namespace hvd
