// Reports with what ranks are doing: asks the ranks of this host through their recorders' memory,
// those of other hosts through their leaders, and answers such questions.
//
// The tracer thread does the work, which may take a moment.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/trace_place.h"
#include "trace/recorder.h"

namespace hvd {

class ActivityReports {
 public:
  ActivityReports(const TraceConfig& config, const TracePlace& place, const TraceMemory& memory,
                  Recorder& recorder)
      : config_(config), place_(place), memory_(memory), recorder_(recorder) {}

  // For the leader of a host where there are others: each rank's leader, how to reach them.
  void connect(std::map<int, int> leaders, SendNote send);

  // Any thread, never block. add(): a warning, to be logged with what these ranks are doing.
  void add(const std::string& text, const std::vector<int>& ranks);
  void note_question(int leader, int rank);
  void note_answer(int rank, const std::string& text);
  // Questions to others end soon from now on.
  void stop();

  // The tracer thread: answers questions, logs reports.
  void work();
  // What a rank is doing, in lines; nothing where that cannot be known.
  std::string describe(int rank);
  // Where this rank's Python threads are; nothing where that is not to be had.
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
