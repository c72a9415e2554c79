#include "runtime/handle_waits.h"

#include <algorithm>
#include <thread>

namespace hvd {

namespace {

// Between two looks of a thread that waits for GPUs to finish.
constexpr auto kConfirmInterval = std::chrono::microseconds(100);

}  // namespace

HandleWaits::HandleWaits(const CommonParts& common, Progress& progress, PeerWaits& peers,
                         const Background& background, FormingDelay& delay,
                         const BucketRunner& buckets)
    : CommonParts(common),
      progress_(progress),
      peers_(peers),
      background_(background),
      delay_(delay),
      buckets_(buckets) {}

void HandleWaits::release_role() {
  if (progress_.release_role()) doorbells_.ring_background();
  results_.deliver();
}

bool HandleWaits::poll(HandleId handle) {
  const Pending pending = results_.pending(handle);
  if (pending && !results_.is_always_unattended() && role_.take(false)) {
    while (pending && progress_.step(true) == Progress::Step::kProgressed) {
    }
    release_role();
  }
  return !pending;
}

bool HandleWaits::wait(HandleId handle, Nanoseconds limit) {
  const Pending pending = results_.pending(handle);
  if (!pending) return true;
  const std::int64_t begin_ns = now_ns();
  const std::int64_t deadline_ns = begin_ns + limit.count();
  bool has_more = false;
  while (pending && now_ns() < deadline_ns) {
    if (results_.is_always_unattended() && !background_.is_this_thread()) {
      await_background(pending, deadline_ns);
      continue;
    }
    if (!role_.take(true)) continue;
    drive_until(pending, std::min(deadline_ns, now_ns() + kWaitSlice.count()));
    has_more = progress_.release_role();
    results_.deliver();
  }
  // Something became ready meanwhile, and no thread waits for it.
  if (!pending && has_more) doorbells_.ring_background();
  if (pending) {
    counters_.blocked_ns.add_shared(static_cast<std::uint64_t>(limit.count()));
    std::int64_t none = 0;  // the caller will continue the wait: both parts count as one wait
    blocked_since_ns_.compare_exchange_strong(none, begin_ns);
  } else {
    note_wait(begin_ns);
  }
  return !pending;
}

void HandleWaits::drive_until(const Pending& pending, std::int64_t deadline_ns) {
  std::int64_t moved_ns = now_ns();
  while (pending && !results_.has_due() && !role_.is_closed()) {
    const Progress::Step step = progress_.step(true);
    if (step == Progress::Step::kProgressed) {
      if (world_.spans_hosts()) moved_ns = now_ns();
      continue;
    }
    if (world_.spans_hosts()) {
      if (peers_.may_spin(moved_ns)) continue;
      peers_.wait(deadline_ns, true);
      moved_ns = now_ns();
    } else if (step == Progress::Step::kIdle) {
      peers_.wait_for_work(pending, deadline_ns);
    } else {
      peers_.wait(deadline_ns, true);
    }
    if (now_ns() >= deadline_ns) return progress_.check_stalls();
  }
}

void HandleWaits::await_background(const Pending& pending, std::int64_t deadline_ns) {
  delay_.add_onlooker(1);
  if (doorbells_.is_left_to_background() && (sets_.has_ready() || world_.spans_hosts()))
    doorbells_.ring_background();
  {
    std::unique_lock lock(lock_.mutex);
    lock_.changed.wait_for(lock, slice_until(deadline_ns),
                           [&] { return !pending || role_.is_closed(); });
  }
  delay_.add_onlooker(-1);
}

// A wait that began at `begin_ns` is over.
void HandleWaits::note_wait(std::int64_t begin_ns) {
  const std::int64_t done_ns = buckets_.last_done_ns();
  if (const auto blocked_ns = done_ns - begin_ns; blocked_ns > 0)
    counters_.blocked_ns.add_shared(static_cast<std::uint64_t>(blocked_ns));
  const std::int64_t since_ns = blocked_since_ns_.exchange(0);
  const std::int64_t whole_ns = done_ns - (since_ns == 0 ? begin_ns : since_ns);
  if (whole_ns < kLongWait.count()) return;
  recorder_.record({.time_ns = done_ns,
                    .kind = EventKind::kBlocked,
                    .value = static_cast<std::uint64_t>(whole_ns)});
}

bool HandleWaits::confirm(Nanoseconds limit) {
  const std::int64_t deadline_ns = now_ns() + limit.count();
  bool is_working = true;
  do {
    if (role_.take(true)) {
      progress_.step(true);
      is_working = progress_.has_device_work();
      release_role();
    }
    results_.throw_if_over();
    if (is_working) std::this_thread::sleep_for(kConfirmInterval);
  } while (is_working && now_ns() < deadline_ns);
  return !is_working;
}

}  // namespace hvd
