#include "trace/clock_alignment.h"

#include <algorithm>

#include "control/request.h"

namespace hvd {

namespace {

// The drift between two clocks. One of them may be slewed to follow an NTP server.
constexpr double kDrift = 1e-4;
constexpr std::size_t kMostBuckets = 1024;
constexpr std::size_t kMostSubmits = 1U << 16;

std::int64_t drift_ns(std::int64_t since_ns, std::int64_t now_ns) {
  return static_cast<std::int64_t>(
      kDrift * static_cast<double>(std::max<std::int64_t>(0, now_ns - since_ns)));
}

void keep_first(std::optional<std::int64_t>& known, std::int64_t value) {
  known = known ? std::min(*known, value) : value;
}

void keep_last(std::optional<std::int64_t>& known, std::int64_t value) {
  known = known ? std::max(*known, value) : value;
}

}  // namespace

void ClockAlignment::add(bool is_other, int rank, const Event& event, int kind) {
  auto& submits = submits_[is_other ? 1 : 0];
  if (event.kind == EventKind::kSubmit) {
    if (submits.size() >= kMostSubmits) submits.clear();
    submits[{rank, event.subject}] = event.time_ns;
    return;
  }
  const bool is_fused = event.kind == EventKind::kFused;
  if (!is_fused && event.kind != EventKind::kBucketStart && event.kind != EventKind::kBucketDone) {
    return;
  }
  const std::uint32_t number = is_fused ? static_cast<std::uint32_t>(event.value) : event.subject;
  if (buckets_.size() > kMostBuckets) buckets_.erase(buckets_.begin());
  Bucket& bucket = buckets_[{event.process_set, number}];
  Done& done = is_other ? bucket.there : bucket.here;
  if (is_fused) {
    const auto submit = submits.find({rank, event.subject});
    if (submit != submits.end()) keep_last(done.last_submit_ns, submit->second);
    bucket.needs_all = bucket.needs_all || static_cast<Kind>(kind) == Kind::kAllreduce;
  } else if (event.kind == EventKind::kBucketStart) {
    keep_first(done.first_start_ns, event.time_ns);
    keep_last(done.last_start_ns, event.time_ns);
  } else {
    keep_first(done.first_done_ns, event.time_ns);
  }
  bound(bucket);
}

void ClockAlignment::bound(const Bucket& bucket) {
  const auto& [here, there, needs_all] = bucket;
  if (there.last_submit_ns && here.first_start_ns) {
    bound_below(*there.last_submit_ns - *here.first_start_ns, *here.first_start_ns);
  }
  if (here.last_submit_ns && there.first_start_ns) {
    bound_above(*there.first_start_ns - *here.last_submit_ns, *here.last_submit_ns);
  }
  if (!needs_all) return;
  if (there.last_start_ns && here.first_done_ns) {
    bound_below(*there.last_start_ns - *here.first_done_ns, *here.first_done_ns);
  }
  if (here.last_start_ns && there.first_done_ns) {
    bound_above(*there.first_done_ns - *here.last_start_ns, *here.last_start_ns);
  }
}

void ClockAlignment::bound_below(std::int64_t value_ns, std::int64_t time_ns) {
  if (low_ && low_->value_ns - drift_ns(low_->time_ns, time_ns) > value_ns) return;
  low_ = {value_ns, time_ns};
}

void ClockAlignment::bound_above(std::int64_t value_ns, std::int64_t time_ns) {
  if (high_ && high_->value_ns + drift_ns(high_->time_ns, time_ns) < value_ns) return;
  high_ = {value_ns, time_ns};
}

std::optional<ClockAlignment::Estimate> ClockAlignment::estimate() const {
  if (!low_ || !high_) return std::nullopt;
  const std::int64_t latest = std::max(low_->time_ns, high_->time_ns);
  const std::int64_t low = low_->value_ns - drift_ns(low_->time_ns, latest);
  const std::int64_t high = high_->value_ns + drift_ns(high_->time_ns, latest);
  return Estimate{.ahead_ns = low + (high - low) / 2,
                  .error_ns = std::max<std::int64_t>(0, (high - low + 1) / 2)};
}

}  // namespace hvd
