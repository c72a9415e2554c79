// Notices at once when the process of another rank of this host ends, and when another host sends
// news.
//
// One thread sleeps in poll(2) on the peers' pidfds. It does not wake up while all processes run.
// If the system has no pidfds, it checks four times a second whether the process still exists.
#pragma once

#include <poll.h>

#include <cstddef>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "core/descriptor.h"

namespace hvd {

struct WatchedProcess {
  int rank = -1;
  int pidfd = -1;  // owned by the watcher; -1: not available
  int pid = 0;
};

class Watcher {
 public:
  // Calls on_death(rank) from its own thread, once per rank. Calls on_readable(i) when links[i] is
  // readable, until it returns false. The caller keeps the descriptors of `links`.
  Watcher(std::vector<WatchedProcess> processes, std::function<void(int rank)> on_death,
          std::vector<int> links = {}, std::function<bool(std::size_t index)> on_readable = {});
  ~Watcher();

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
  Descriptor stop_in_;  // the ends of a pipe: a byte in it ends the thread
  Descriptor stop_out_;
  std::thread thread_;
};

}  // namespace hvd
