// Notices at once when the process of another rank of this host ends, and when another host has
// news.
//
// One thread sleeps in poll(2) on the peers' pidfds; it never wakes while all is well. Where the
// system gives no pidfd it asks four times a second whether the process still exists.
#pragma once

#include <poll.h>

#include <cstddef>
#include <functional>
#include <span>
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
  // Calls on_death(rank) from its own thread, once per rank; and on_readable(i) when links[i], a
  // descriptor that stays the caller's, has something to read, until it returns false.
  Watcher(std::vector<WatchedProcess> processes, std::function<void(int rank)> on_death,
          std::vector<int> links = {}, std::function<bool(std::size_t index)> on_readable = {});
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void run();
  void look_at_processes(std::span<const pollfd> polled);
  void look_at_links(std::span<const pollfd> polled);
  bool has_ended(const WatchedProcess& process, short events) const;
  void close_descriptors();

  std::vector<WatchedProcess> processes_;
  const std::function<void(int rank)> on_death_;
  std::vector<int> links_;  // -1: no longer watched
  const std::function<bool(std::size_t index)> on_readable_;
  int stop_pipe_[2] = {-1, -1};
  std::thread thread_;
};

}  // namespace hvd
