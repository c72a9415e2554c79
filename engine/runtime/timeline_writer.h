// Writes a timeline: rank 0 does, from the recorders of its host and from what the leaders of other
// hosts send of theirs. A leader sends when it is asked to.
//
// The tracer thread does the work; any thread may begin and end it. It reads the recorders of its
// host when they are a quarter full, and ten times a second at least.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/timeline_collector.h"
#include "runtime/trace_place.h"

namespace hvd {

class TimelineWriter {
 public:
  TimelineWriter(const TraceConfig& config, const TracePlace& place, const TraceMemory& memory);
  TimelineWriter(const TimelineWriter&) = delete;
  TimelineWriter& operator=(const TimelineWriter&) = delete;

  // The ranks of each of the other hosts, the leader first.
  void connect(std::vector<std::vector<int>> other_hosts, SendNote send);

  // Rank 0. An error is logged, and there is no timeline.
  void start(const std::string& path, bool mark_cycles, bool from_now);
  void stop();
  // Another host's leader: for the timeline of rank 0.
  void begin_sending(bool from_now);
  void end_sending();
  // Rank 0: what another host's leader sent. Throws BadMessage.
  void receive(int leader, const std::string& bytes);

  // Whether there is something to write or to send.
  bool is_active() const { return is_active_.load(); }
  // Takes what is new out of the recorders. Returns when to look again, given how long it was left
  // to itself before.
  Nanoseconds work(Nanoseconds last_nap);

 private:
  void begin(const std::string& path, bool mark_cycles, bool from_now);
  void set_receiver(std::shared_ptr<TimelineCollector> receiver);
  std::vector<TraceSource> sources(bool from_now) const;
  bool tell_others(NoteKind kind, int value) const;
  void finish();
  void drop();

  const TraceConfig& config_;
  const TracePlace& place_;
  const TraceMemory& memory_;
  std::vector<std::vector<int>> other_hosts_;
  SendNote send_;

  std::mutex mutex_;
  std::shared_ptr<TimelineCollector> timeline_;
  std::unique_ptr<TraceSender> sender_;
  std::atomic<bool> is_active_{false};

  std::mutex receiver_mutex_;  // never held for long: a receiver must not wait for a file
  std::shared_ptr<TimelineCollector> receiver_;
};

}  // namespace hvd
