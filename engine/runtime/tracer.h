// What happens around a rank's flight recorder: files of it, the timeline, answers to other ranks
// that ask what this one is doing.
//
// A thread of its own, the scribe, does all that takes time. It sleeps until something is wanted of
// it; while a timeline is written it looks at the recorders of its host every now and then.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

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
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // For the leader of a host where there are others: each rank's leader, how to reach them.
  void connect(std::map<int, int> leaders, SendNote send);
  // The thread begins.
  void start();
  // Any thread: a note of another host's leader.
  void hear(int leader, NoteKind kind, int rank, const std::string& text);
  Recorder& recorder() { return recorder_; }

  // Has a file written soon, of this rank's or another one's recorder. Any thread, never blocks.
  void want_file(const std::string& reason, const std::string& detail, int rank);
  // Writes one now; returns its path. Throws Error. An empty path: where files go.
  std::string write_file(const std::string& reason, const std::string& detail,
                         const std::string& path);

  // Logs a warning, with what these ranks are doing. Any thread, never blocks.
  void report(const std::string& text, const std::vector<int>& ranks);
  // The world ends as it should: the last events go to a file before the thread ends.
  void want_last_file();
  // What a rank is doing, in lines; nothing where that cannot be known. Takes a moment.
  std::string describe(int rank);

  // Rank 0 writes, on others these have no effect. An error is logged.
  void start_timeline(const std::string& path, bool mark_cycles);
  void stop_timeline();
  // The last of what others want of the recorders here, and the timeline's end.
  void end_traces();

  // Does what is still to do, and ends the thread.
  void stop();
  // In a child after fork.
  void abandon();

 private:
  struct Wish {
    std::string reason;
    std::string detail;
    int rank;
  };
  struct Report {
    std::string text;
    std::vector<int> ranks;
  };
  struct Question {
    int leader;
    int rank;
  };

  void run();
  void wake_tracer();
  void carry_out(const Wish& wish);
  void announce();
  bool may_be_asked_from_afar() const;
  void look_for_requests(std::vector<Wish>& wishes);
  std::string file_stem(int rank) const;
  void answer();
  void answer_others();
  std::string file_of(const RecorderView& recorder, const Wish& wish, const std::string& path,
                      bool with_stacks);
  JobFolder job_folder() const;
  std::string presence_name() const { return file_stem(place_.rank) + kPresenceSuffix; }
  std::string stacks();
  void log_report(const Report& report);
  std::string ask(RecorderHeader& header);
  std::string describe_far(int rank);

  const TraceConfig config_;
  const TracePlace place_;
  const TraceMemory memory_;
  Recorder recorder_;
  TimelineWriter timeline_;

  std::mutex files_mutex_;
  std::mutex mutex_;
  std::vector<Wish> wishes_;
  std::vector<Report> reports_;
  std::vector<Question> questions_;
  std::map<int, std::string> answers_;  // of other hosts, by rank
  std::condition_variable answered_;
  std::uint32_t dumps_done_ = 0;
  std::optional<JobFolder> folder_;  // where a file says that this rank runs; none: nobody knows
  std::string last_request_;

  std::map<int, int> leaders_;  // by rank; empty: no other host can be reached
  SendNote send_;

  std::atomic<bool> stopping_{false};
  std::thread tracer_thread_;
};

}  // namespace hvd
