#include "runtime/background.h"

#include <algorithm>

#include "core/clock.h"
#include "core/quiet_thread.h"

namespace hvd {

namespace {

// The thread stays alert for so long after a ring without work.
constexpr Nanoseconds kAlertness = std::chrono::milliseconds(1);

}  // namespace

Background::Background(const CommonParts& common, Progress& progress, PeerWaits& peers,
                       FormingDelay& delay, Membership& membership)
    : CommonParts(common),
      progress_(progress),
      peers_(peers),
      delay_(delay),
      membership_(membership) {}

void Background::start() {
  thread_ = quiet_thread([this] { run(); });
}

void Background::join() {
  if (thread_.joinable()) thread_.join();
}

void Background::wake_after(const Submitted& submitted, Intent intent) {
  last_submission_ns_.store(submitted.at_ns, std::memory_order_relaxed);
  const EngineConfig& config = world_.config;
  const ProcessSetContext& context = *submitted.context;
  const bool became_ready = submitted.became_ready;
  if (became_ready) {
    for (const int rank : context.local) {
      if (world_.presence.wait_state(rank) == WaitState::kHelperAsleep) world_.presence.ring(rank);
      if (rank != config.rank) world_.presence.tell(rank);
    }
  }
  // A thread that sleeps for another set must wake up for this one.
  if (const int set = doorbells_.sleeping_set(); set >= 0 && set != context.id) {
    const std::lock_guard guard(lock_.mutex);
    doorbells_.wake_holder();
  }
  if (intent == Intent::kWait && !results_.is_always_unattended()) return;
  const bool is_left = doorbells_.is_left_to_background();
  // The least: the stall check needs a thread that wakes up now and then.
  WakePolicy wanted = WakePolicy::kNapping;
  const bool can_start =
      intent != Intent::kMore || config.has_spare_cores() || results_.is_unattended();
  if (became_ready && can_start && is_left) {
    wanted = delay_.is_enough(context.negotiation.ready_bytes()) ? WakePolicy::kUrgent
                                                                 : WakePolicy::kAlert;
  }
  // The operation may need a rank that is gone. A thread must find that out.
  if (membership_.has_departures()) wanted = WakePolicy::kUrgent;
  // Other hosts cannot ring: a thread must listen to them.
  if (context.spans_hosts() && is_left) wanted = std::max(wanted, WakePolicy::kAlert);
  if (doorbells_.policy() >= wanted) return;
  doorbells_.set_policy(wanted);
  doorbells_.ring_background();
}

void Background::run() {
  id_.store(std::this_thread::get_id());
  SharedWord& doorbell = world_.presence.background_doorbell();
  std::uint32_t heard = doorbell.load();
  while (!role_.is_closed()) {
    const std::uint32_t seen = doorbell.load(std::memory_order_seq_cst);
    const bool had_role = role_.take(false);
    if (had_role) {
      const bool has_due = drive();
      progress_.release_role();
      if (results_.deliver() || has_due) continue;  // there may be more to do
    }
    Nanoseconds nap = this->nap(had_role, seen != heard);
    heard = seen;
    const bool is_watching = progress_.has_device_work();
    progress_.watch_devices_in_background(is_watching);
    if (is_watching) nap = std::min(nap, kWaitSlice);
    if (!role_.is_closed()) futex_wait(doorbell, seen, nap);
  }
}

// True when it stopped because continuations are due. Then there may be more to do.
bool Background::drive() {
  progress_.check_stalls();
  while (!role_.is_closed() && !role_.is_wanted()) {
    if (results_.has_due()) return true;
    const Progress::Step step = progress_.step(delay_.may_form());
    if (step == Progress::Step::kProgressed) continue;
    if (step == Progress::Step::kIdle &&
        (!world_.spans_hosts() || results_.is_over() || !sets_.has_active())) {
      return results_.has_due();
    }
    peers_.wait(now_ns() + kWaitSlice.count(), false);
    progress_.check_stalls();
  }
  return false;
}

// After a ring by this rank it stays alert for a moment, so that a burst of submissions rings once.
Nanoseconds Background::nap(bool had_role, bool was_rung) {
  Nanoseconds nap = std::max(delay_.linger(), kAlertness);
  if (was_rung && doorbells_.policy() >= WakePolicy::kAlert) {
    doorbells_.set_policy(WakePolicy::kAlert);
  } else {
    nap = idle_nap();
  }
  // After the policy was set: a thread that submitted before saw the old policy, and may not have
  // rung.
  if (!had_role || results_.is_over()) return nap;
  {
    const std::lock_guard guard(lock_.mutex);
    if (!sets_.has_ready() && !missed_something()) {
      // An operation that no thread waits for may need a rank that is gone.
      const bool must_look = membership_.has_departures() && results_.is_unattended();
      return must_look ? std::min(nap, kWaitSlice) : nap;
    }
  }
  delay_.begin();
  doorbells_.set_policy(WakePolicy::kAlert);
  return delay_.left();
}

// Under the mutex, before a long sleep. For operations that no thread waits for, other ranks do not
// ring this one. After expect() they ring when they make something ready.
bool Background::missed_something() {
  if (!results_.is_unattended()) return false;
  world_.presence.expect();
  return !role_.is_taken() && (sets_.has_ready() || sets_.can_progress(false));
}

// Without work it sleeps until the stall check is due, or until a ring.
Nanoseconds Background::idle_nap() {
  const bool has_check = world_.config.stall_check;
  const auto interval =
      Nanoseconds(static_cast<std::int64_t>(world_.config.stall_check_time_s * 1e9)) / 2;
  const std::int64_t since_ns = now_ns() - last_submission_ns_.load(std::memory_order_relaxed);
  const std::lock_guard guard(lock_.mutex);
  const bool must_watch = has_check && (since_ns < interval.count() || sets_.has_active());
  doorbells_.set_policy(has_check && !must_watch ? WakePolicy::kAsleep : WakePolicy::kNapping);
  return must_watch ? std::max(interval, kWaitSlice) : kForever;
}

}  // namespace hvd
