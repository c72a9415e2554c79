// Makes progress on all process sets in turn. None waits for another: while one waits for a rank,
// others go on. In the progress role, but for what says otherwise.
#pragma once

#include <atomic>

#include "runtime/bucket_runner.h"
#include "runtime/membership.h"
#include "runtime/progress_role.h"
#include "runtime/stall_monitor.h"

namespace hvd {

class Progress {
 public:
  enum class Step { kProgressed, kBlocked, kIdle };

  Progress(World& world, ProcessSets& sets, Membership& membership, Results& results,
           ProgressRole& role, BucketRunner& buckets, StallMonitor& stalls, Tracer& tracer,
           EngineLock& lock);

  // Never blocks for long. `may_form`: whether it may form a bucket of what is ready.
  Step step(bool may_form);
  void check_stalls();
  // Gives up the role. True when something is ready that no thread has begun, or may become so with
  // no thread to see it.
  bool release_role();
  // All operations of this rank fail, on all sets.
  void fail_everything(const Error& error);

  // Any thread: are GPUs still working on operations that are done here?
  bool has_device_work() const { return has_device_work_.load(); }
  // The background thread looks after the GPUs from now on, or does not.
  void watch_devices_in_background(bool is_watched) { is_device_watched_.store(is_watched); }

 private:
  Step step_contexts(bool may_form);
  Step run_or_form(ProcessSetContext& context, bool may_form);
  bool relay(ProcessSetContext& context);
  void ring_for_relay(ProcessSetContext& context);
  void watch_devices();
  void give_up(const Error& error);

  World& world_;
  ProcessSets& sets_;
  Membership& membership_;
  Results& results_;
  ProgressRole& role_;
  BucketRunner& buckets_;
  StallMonitor& stalls_;
  Tracer& tracer_;
  EngineLock& lock_;
  std::atomic<bool> has_device_work_{false};
  std::atomic<bool> is_device_watched_{false};
};

}  // namespace hvd
