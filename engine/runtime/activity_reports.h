// Reports of what ranks are doing. It asks ranks of this host through their recorders' memory, and
// ranks of other hosts through their leaders. It answers such questions, too.
//
// The tracer thread does the work, since it may take a moment.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/trace_place.h"
#include "trace/recorder.h"

namespace hvd {

// A text of what a rank is doing, from its flight recorder:
// "has last submitted broadcast 'x' 61.2 s ago (done)". Up to three operations, the last one first.
std::string last_operations(const RecorderView& recorder, std::int64_t now);

// The stack of the main thread, from faulthandler's text about all threads, with `indent` before
// each line. At most `most_lines` calls: the innermost one, then those from the program's innermost
// on; calls of packages between them are left out. Empty if there is none.
std::string main_stack(std::string_view stacks, std::string_view indent, int most_lines);

// Whether a process is stopped, for example by SIGSTOP or a debugger.
bool is_stopped(int pid);

class ActivityReports {
 public:
  ActivityReports(const TraceConfig& config, const TracePlace& place, const TraceMemory& memory,
                  Recorder& recorder)
      : config_(config), place_(place), memory_(memory), recorder_(recorder) {}

  // For the leader of a host, if there are other hosts. `leaders`: of each rank. `send`: sends to
  // them.
  void connect(std::map<int, int> leaders, SendNote send);

  // These three: any thread; they never block. add(): logs a warning later, with what these ranks
  // do.
  void add(const std::string& text, const std::vector<int>& ranks);
  void note_question(int leader, int rank);
  void note_answer(int rank, const std::string& text);
  // Questions to others end soon from now on.
  void stop();

  // The tracer thread: answers questions, logs reports.
  void work();
  // Lines about what a rank is doing; empty if it cannot be known.
  std::string describe(int rank);
  // The stacks of this rank's Python threads; empty if they cannot be read.
  std::string stacks() const;

 private:
  struct Report {
    std::string text;
    std::vector<int> ranks;
  };
  struct Question {
    int leader;
    int rank;
  };

  void answer();
  void answer_others();
  void log_report(const Report& report);
  std::string ask(RecorderHeader& header);
  std::string describe_far(int rank);

  const TraceConfig& config_;
  const TracePlace& place_;
  const TraceMemory& memory_;
  Recorder& recorder_;
  std::map<int, int> leaders_;  // by rank; empty: no other host can be reached
  SendNote send_;

  std::mutex mutex_;
  std::vector<Report> reports_;
  std::vector<Question> questions_;
  std::map<int, std::string> answers_;  // of other hosts, by rank
  std::condition_variable answered_;
  std::atomic<bool> is_stopping_{false};
};

}  // namespace hvd
