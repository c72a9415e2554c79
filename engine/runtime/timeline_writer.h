// Writes a timeline on rank 0, from the recorders of its host and from the events that the leaders
// of other hosts send. A leader sends events after rank 0 has asked for them.
//
// The tracer thread does the work. Any thread may begin and end it. It reads the recorders of its
// host when they are a quarter full, and at least ten times a second.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/timeline_collector.h"
#include "runtime/trace_place.h"

namespace hvd {

class TimelineWriter {
 public:
  TimelineWriter(const TraceConfig& config, const TracePlace& place, const TraceMemory& memory);

  // The ranks of each of the other hosts, the leader first.
  void connect(std::vector<std::vector<int>> other_hosts, SendNote send);

  // Rank 0. An error is logged, and there is no timeline.
  void start(const std::string& path, bool mark_cycles, bool from_now);
  void stop();
  // On another host's leader: for the timeline of rank 0.
  void begin_sending(bool from_now);
  void end_sending();
  // On rank 0: a message of another host's leader. Throws BadMessage.
  void receive(int leader, const std::string& bytes);

  // Whether events are to be written or sent.
  bool is_active() const { return is_active_.load(); }
  // Reads the new events of the recorders. Returns the time to the next call. `last_nap`: the time
  // since the last call.
  Nanoseconds work(Nanoseconds last_nap);

 private:
  void begin(const std::string& path, bool mark_cycles, bool from_now);
  void set_receiver(std::shared_ptr<TimelineCollector> receiver);
  std::vector<TraceSource> sources(bool from_now) const;
  bool tell_others(NoteKind kind, int value) const;
  void send_news();
  void finish();
  void drop();

  const TraceConfig& config_;
  const TracePlace& place_;
  const TraceMemory& memory_;
  std::vector<std::vector<int>> other_hosts_;
  SendNote send_;

  std::mutex mutex_;
  std::shared_ptr<TimelineCollector> timeline_;
  std::optional<std::vector<TraceSource>> sent_;  // to rank 0; none: it wants none
  std::atomic<bool> is_active_{false};

  std::mutex receiver_mutex_;  // never held for long: receive() must not wait for a file
  std::shared_ptr<TimelineCollector> receiver_;
};

}  // namespace hvd
