// What happens around a rank's flight recorder: files of it, the timeline, answers to other ranks
// that ask what this one is doing.
//
// A thread of its own, the scribe, does all that takes time. It sleeps until something is wanted of
// it; while a timeline is written it looks at the recorders of its host every now and then.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/log.h"
#include "trace/recorder.h"
#include "trace/recorder_file.h"
#include "trace/timeline.h"

namespace hvd {

struct TraceConfig {
  std::uint32_t events = 1U << 16;  // that are kept; 0: no recorder
  // Where files go; an empty folder: nowhere.
  std::string folder;
  bool is_chosen_folder = false;
  std::string job = "job";  // the folder in it
  std::string world;        // a JSON object for every file
  // How to get at Python's stacks without its lock: raising the signal writes them to the file.
  int stack_signal = 0;  // 0: not at all
  int stack_fd = -1;
  std::string timeline_path;  // empty: not from the start
  bool timeline_mark_cycles = false;
  std::size_t timeline_max_bytes = 1U << 30;
  std::string data_plane = "native";
};

class Tracer {
 public:
  struct Place {
    int rank = 0;
    std::vector<int> local;               // ranks of this host
    std::map<int, int> pids;              // of those that are known, by rank
    std::vector<std::string> rank_names;  // of the world
    LogConfig log;
  };
  // The memory of a rank of this host.
  using Memory = std::function<std::shared_ptr<Region>(int rank)>;

  Tracer(TraceConfig config, Place place, Memory memory);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // The thread begins.
  void start();
  Recorder& recorder() { return recorder_; }

  // Has a file written soon, of this rank's or another one's recorder. Any thread, never blocks.
  void want_file(const std::string& reason, const std::string& detail, int rank);
  // Writes one now; returns its path. Throws Error. An empty path: where files go.
  std::string write_file(const std::string& reason, const std::string& detail,
                         const std::string& path);

  // Logs a warning, with what these ranks are doing. Any thread, never blocks.
  void report(const std::string& text, const std::vector<int>& ranks);
  // What a rank of this host is doing, in lines. Takes a moment.
  std::string describe(int rank);

  // Rank 0 writes, on others these have no effect. An error is logged.
  void start_timeline(const std::string& path, bool mark_cycles);
  void stop_timeline();

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
  struct Source {
    RecorderView view;
    std::uint64_t next;  // event to read
  };

  void run();
  void call_scribe();
  void carry_out(const Wish& wish);
  void answer();
  std::string file_of(const RecorderView& recorder, const Wish& wish, const std::string& path,
                      bool with_stacks);
  std::string stacks();
  void log_report(const Report& report);
  std::string ask(RecorderHeader& header);
  std::string name_of(int rank) const;

  void begin_timeline(const std::string& path, bool mark_cycles);
  bool drain();
  bool drain(int rank, Source& source);
  void finish_timeline();

  const TraceConfig config_;
  const Place place_;
  const Memory memory_;
  Recorder recorder_;

  std::mutex files_mutex_;
  std::mutex mutex_;
  std::vector<Wish> wishes_;
  std::vector<Report> reports_;
  std::uint32_t dumps_done_ = 0;

  std::mutex timeline_mutex_;
  std::unique_ptr<Timeline> timeline_;
  std::map<int, Source> sources_;  // by rank

  std::atomic<bool> has_timeline_{false};
  std::atomic<bool> stopping_{false};
  std::thread scribe_;
};

}  // namespace hvd
