// Notices at once when the process of another rank ends.
//
// One thread sleeps in poll(2) on the peers' pidfds; it never wakes while all is well. Where the
// system gives no pidfd it asks four times a second whether the process still exists.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace hvd {

struct WatchedProcess {
  int rank = -1;
  int pidfd = -1;  // owned by the watcher; -1: not available
  int pid = 0;
};

class Watcher {
 public:
  // Calls on_death(rank) from its own thread, once per rank.
  Watcher(std::vector<WatchedProcess> processes, std::function<void(int rank)> on_death);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void run();
  bool has_ended(const WatchedProcess& process, short events) const;
  void close_descriptors();

  std::vector<WatchedProcess> processes_;
  const std::function<void(int rank)> on_death_;
  int stop_pipe_[2] = {-1, -1};
  std::thread thread_;
};

}  // namespace hvd
