// Makes progress on all process sets in turn. No set waits for another set: while one waits for a
// rank, others go on. In the progress role, unless a comment says otherwise.
#pragma once

#include <atomic>
#include <optional>

#include "runtime/bucket_runner.h"
#include "runtime/common_parts.h"
#include "runtime/membership.h"
#include "runtime/stall_monitor.h"

namespace hvd {

class Progress : private CommonParts {
 public:
  enum class Step { kProgressed, kBlocked, kIdle };

  Progress(const CommonParts& common, Membership& membership, BucketRunner& buckets,
           StallMonitor& stalls, Tracer& tracer);

  // Never blocks for long. `may_form`: whether it may form a bucket of ready tensors.
  Step step(bool may_form);
  void check_stalls();
  // Gives up the role. True if a thread must continue: something is ready that no thread has begun,
  // or may become ready without a ring.
  bool release_role();
  // All operations of this rank fail, on all sets.
  void fail_everything(const Error& error);

  // Any thread: whether GPUs still work on operations that are done here.
  bool has_device_work() const { return has_device_work_.load(); }
  // Whether the background thread watches the GPUs from now on.
  void watch_devices_in_background(bool is_watched) { is_device_watched_.store(is_watched); }

 private:
  Step step_contexts(bool may_form);
  Step run_or_form(ProcessSetContext& context, bool may_form);
  bool relay(ProcessSetContext& context);
  void ring_for_relay(ProcessSetContext& context);
  void watch_devices();
  void give_up(const Error& error);
  bool awaits_name();

  Membership& membership_;
  BucketRunner& buckets_;
  StallMonitor& stalls_;
  Tracer& tracer_;
  std::atomic<bool> has_device_work_{false};
  std::atomic<bool> is_device_watched_{false};
  std::optional<UnnamedLoss> unnamed_loss_;
  std::int64_t name_deadline_ns_ = 0;
};

}  // namespace hvd
