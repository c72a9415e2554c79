// The uses of a rank's flight recorder: files, the timeline, and reports of what ranks are doing.
//
// The tracer thread does all work that takes time. It sleeps until it is woken for work. While a
// timeline is written, it also reads the recorders of its host now and then.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/usage.h"
#include "runtime/activity_reports.h"
#include "runtime/news.h"
#include "runtime/timeline_writer.h"
#include "runtime/trace_place.h"
#include "trace/job_folder.h"
#include "trace/recorder.h"
#include "trace/recorder_file.h"

namespace hvd {

class Tracer {
 public:
  Tracer(TraceConfig config, TracePlace place, TraceMemory memory);
  ~Tracer();

  // For the leader of a host, if there are other hosts. `leaders`: of each rank. `send`: sends to
  // them.
  void connect(std::map<int, int> leaders, SendNote send);
  // The thread begins.
  void start();
  // Any thread: a note of another host's leader.
  void hear(int leader, NoteKind kind, int rank, const std::string& text);
  Recorder& recorder() { return recorder_; }

  // Requests a file of this rank's or another rank's recorder. Any thread, never blocks.
  void want_file(const std::string& reason, const std::string& detail, int rank);
  // Writes a file now, and returns its path. An empty path: in the job's folder. Throws Error.
  std::string write_file(const std::string& reason, const std::string& detail,
                         const std::string& path);

  // Logs a warning, with what these ranks are doing. Any thread, never blocks.
  void report(const std::string& text, const std::vector<int>& ranks);
  // The world ends regularly: the last events are written to a file before the thread ends.
  void want_last_file();

  // Rank 0 writes; on other ranks these have no effect. An error is logged.
  void start_timeline(const std::string& path, bool mark_cycles);
  void stop_timeline();
  // Sends the last events to rank 0, and ends the timeline.
  void end_traces();

  // Does the remaining work, and ends the thread.
  void stop();
  // In a child after fork.
  void abandon();

 private:
  struct Wish {
    std::string reason;
    std::string detail;
    int rank;
  };

  void run();
  void wake();
  void carry_out(const Wish& wish);
  void announce();
  bool may_be_asked_from_afar() const;
  void look_for_requests(std::vector<Wish>& wishes);
  std::string file_stem(int rank) const;
  std::string file_of(const RecorderView& recorder, const Wish& wish, const std::string& path,
                      bool with_stacks);
  JobFolder job_folder() const;
  std::string presence_name() const { return file_stem(place_.rank) + kPresenceSuffix; }

  const TraceConfig config_;
  const TracePlace place_;
  const TraceMemory memory_;
  const Usage begun_ = usage_now();
  Recorder recorder_;
  TimelineWriter timeline_;
  ActivityReports reports_;

  std::mutex files_mutex_;
  std::mutex mutex_;
  std::vector<Wish> wishes_;
  std::uint32_t dumps_done_ = 0;
  std::optional<JobFolder> folder_;  // with the presence file of this rank; none: there is no file
  std::string last_request_;

  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace hvd
