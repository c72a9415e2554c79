// The background thread: makes progress while no thread of the program waits.
//
// An idle engine does not wake up, except for one stall check after the last submission.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "runtime/common_parts.h"
#include "runtime/forming_delay.h"
#include "runtime/peer_waits.h"
#include "runtime/progress.h"
#include "runtime/submitter.h"

namespace hvd {

class Background : private CommonParts {
 public:
  Background(const CommonParts& common, Progress& progress, PeerWaits& peers, FormingDelay& delay,
             Membership& membership);

  void start();
  void join();
  void abandon() { thread_.detach(); }  // in a child after fork

  // Any thread: wakes this thread and other ranks if a submission needs them.
  void wake_after(const Submitted& submitted, Intent intent);
  bool is_this_thread() const { return id_.load() == std::this_thread::get_id(); }

 private:
  void run();
  bool drive();
  Nanoseconds nap(bool had_role, bool was_rung);
  Nanoseconds idle_nap();
  bool missed_something();

  Progress& progress_;
  PeerWaits& peers_;
  FormingDelay& delay_;
  Membership& membership_;
  std::atomic<std::int64_t> last_submission_ns_{0};
  std::atomic<std::thread::id> id_{};
  std::thread thread_;
};

}  // namespace hvd
