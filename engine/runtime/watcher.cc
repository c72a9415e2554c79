#include "runtime/watcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/error.h"
#include "core/quiet_thread.h"

namespace hvd {

namespace {
constexpr int kAskIntervalMs = 250;
constexpr int kNoTimeout = -1;
}  // namespace

Watcher::Watcher(std::vector<WatchedProcess> processes, std::function<void(int rank)> on_death,
                 std::vector<int> links, std::function<bool(std::size_t index)> on_readable)
    : processes_(std::move(processes)),
      on_death_(std::move(on_death)),
      links_(std::move(links)),
      on_readable_(std::move(on_readable)) {
  if (processes_.empty() && links_.empty()) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    close_descriptors();
    throw system_error("making a pipe for the watcher", errno);
  }
  stop_in_ = Descriptor(ends[0]);
  stop_out_ = Descriptor(ends[1]);
  thread_ = quiet_thread([this] { run(); });
}

Watcher::~Watcher() {
  if (thread_.joinable()) {
    // Closing the pipe is not enough: forked children have the write end, too.
    const char stop = 0;
    [[maybe_unused]] const auto written = write(stop_out_, &stop, 1);
    thread_.join();
  }
  close_descriptors();
}

void Watcher::run() {
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign(1, {.fd = stop_in_, .events = POLLIN, .revents = 0});
    bool must_ask = false;
    for (const WatchedProcess& process : processes_) {
      polled.push_back({.fd = process.pidfd, .events = POLLIN, .revents = 0});
      must_ask = must_ask || process.pidfd < 0;
    }
    for (const int link : links_) {
      polled.push_back({.fd = link, .events = POLLIN, .revents = 0});
    }
    poll(polled.data(), polled.size(), must_ask ? kAskIntervalMs : kNoTimeout);
    if (polled[0].revents != 0) return;
    const auto [processes, links] = std::pair(std::span(polled).subspan(1, processes_.size()),
                                              std::span(polled).subspan(1 + processes_.size()));
    look_at_links(links);  // a host that leaves sends news before its processes end
    look_at_processes(processes);
  }
}

void Watcher::look_at_processes(std::span<const pollfd> polled) {
  std::vector<WatchedProcess> alive;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (!has_ended(processes_[i], polled[i].revents)) {
      alive.push_back(processes_[i]);
      continue;
    }
    if (processes_[i].pidfd >= 0) close(processes_[i].pidfd);
    on_death_(processes_[i].rank);
  }
  processes_ = std::move(alive);
}

void Watcher::look_at_links(std::span<const pollfd> polled) {
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (links_[i] >= 0 && polled[i].revents != 0 && !on_readable_(i)) links_[i] = -1;
  }
}

bool Watcher::has_ended(const WatchedProcess& process, short events) const {
  if (process.pidfd >= 0) return events != 0;
  return process.pid > 0 && kill(process.pid, 0) != 0 && errno == ESRCH;
}

void Watcher::close_descriptors() {
  for (const WatchedProcess& process : processes_) {
    if (process.pidfd >= 0) close(process.pidfd);
  }
}

}  // namespace hvd
