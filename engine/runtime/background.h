// The background thread: makes progress while no thread of the program waits.
//
// An idle engine does not wake, but for one last look of the stall check after the last submission.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "runtime/doorbells.h"
#include "runtime/forming_delay.h"
#include "runtime/peer_waits.h"
#include "runtime/progress.h"
#include "runtime/submitter.h"

namespace hvd {

class Background {
 public:
  Background(World& world, const ProcessSets& sets, Doorbells& doorbells, Progress& progress,
             ProgressRole& role, PeerWaits& peers, FormingDelay& delay, Results& results,
             Membership& membership, EngineLock& lock);

  void start();
  void join();
  void abandon() { thread_.detach(); }  // in a child after fork

  // Any thread: wakes this thread and other ranks as far as a submission needs them.
  void wake_after(const Submitted& submitted, Intent intent);
  bool is_this_thread() const { return id_.load() == std::this_thread::get_id(); }

 private:
  void run();
  bool drive();
  Nanoseconds nap(bool had_role, bool was_rung);
  Nanoseconds idle_nap();
  bool missed_something();

  World& world_;
  const ProcessSets& sets_;
  Doorbells& doorbells_;
  Progress& progress_;
  ProgressRole& role_;
  PeerWaits& peers_;
  FormingDelay& delay_;
  Results& results_;
  Membership& membership_;
  EngineLock& lock_;
  std::atomic<std::int64_t> last_submission_ns_{0};
  std::atomic<std::thread::id> id_{};
  std::thread thread_;
};

}  // namespace hvd
