// Who makes progress and how a thread waits: spinning while every rank has a core, sleeping
// otherwise.
//
// Before a thread sleeps on a peer it rings the peer's bell, unless one of the peer's threads is
// awake: a rank is woken when somebody needs it, not when something happened.
#include <algorithm>

#include "runtime/engine.h"

namespace hvd {

namespace {

// Every sleep ends after this long, to look at alarms that a lost wake-up would hide.
constexpr Nanoseconds kSlice = std::chrono::milliseconds(100);
// An awake peer may be leaving the progress role without having seen that it is needed: ask again.
constexpr Nanoseconds kHandOver = std::chrono::milliseconds(1);
// A peer in the middle of a call is here by then.
constexpr Nanoseconds kPatience = std::chrono::microseconds(10);
// How long the background thread stays alert after a ring that gave it nothing to do.
constexpr Nanoseconds kAlertness = std::chrono::milliseconds(1);
constexpr Nanoseconds kForever = std::chrono::hours(24);
// Looking at the clock costs more than looking at a word; do it once in a while.
constexpr int kLooksPerClock = 64;
std::uint64_t pack(const PeerWait& wait) {
  return 1 + (static_cast<std::uint64_t>(wait.rank) << 8) +
         (static_cast<std::uint64_t>(wait.counter) << 1);
}

PeerWait unpack(std::uint64_t packed) {
  return {.rank = static_cast<int>(packed >> 8),
          .counter = static_cast<Counter>((packed >> 1) & 3),
          .target = 0};
}

Nanoseconds until(std::int64_t deadline_ns) {
  return std::clamp(Nanoseconds(deadline_ns - now_ns()), Nanoseconds(0), kSlice);
}

}  // namespace

Pending Engine::pending(HandleId handle) {
  throw_if_forked();
  const std::lock_guard guard(mutex_);
  return handles_.pending(handle);
}

bool Engine::poll(HandleId handle) {
  const Pending pending = this->pending(handle);
  if (pending && take_role(false)) {
    while (pending && step(true) == Step::kProgressed) {
    }
    release_role();
    if (board_.has_ready()) ring_background();
  }
  return !pending;
}

bool Engine::wait(HandleId handle, Nanoseconds limit) {
  const Pending pending = this->pending(handle);
  if (!pending) return true;
  const std::int64_t deadline_ns = now_ns() + limit.count();
  while (pending && now_ns() < deadline_ns) {
    if (!take_role(true)) continue;
    drive_until(pending, std::min(deadline_ns, now_ns() + kSlice.count()));
    release_role();
  }
  // What became ready meanwhile and nobody waits for.
  if (!pending && board_.has_ready()) ring_background();
  return !pending;
}

void Engine::leave_to_background() { ring_background(); }

// A helper waits a moment for the role and asks the background thread to give it up.
bool Engine::take_role(bool as_helper) {
  std::unique_lock lock(mutex_);
  if (role_taken_ && as_helper) {
    helpers_waiting_.fetch_add(1);
    kick_sleeper();
    changed_.wait_for(lock, std::chrono::milliseconds(1));
    helpers_waiting_.fetch_sub(1);
  }
  if (role_taken_ || stopping_.load()) return false;
  role_taken_ = true;
  peers_.set_attention(Attention::kAwake);
  return true;
}

void Engine::release_role() {
  peers_.set_attention(Attention::kBackground);
  const std::lock_guard guard(mutex_);
  role_taken_ = false;
  if (helpers_waiting_.load() != 0 || stopping_.load()) changed_.notify_all();
}

void Engine::drive_until(const Pending& pending, std::int64_t deadline_ns) {
  while (pending && !stopping_.load(std::memory_order_relaxed)) {
    switch (step(true)) {
      case Step::kProgressed:
        continue;
      case Step::kBlocked:
        wait_for_peer(blocked_on_, deadline_ns, true);
        break;
      case Step::kIdle:
        wait_for_work(pending, deadline_ns);
        break;
    }
    if (now_ns() >= deadline_ns) {
      check_stalls();
      return;
    }
  }
}

bool Engine::spin_until(Nanoseconds limit, auto&& condition) const {
  if (limit.count() == 0) return condition();
  const std::int64_t end_ns = now_ns() + limit.count();
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (condition()) return true;
      cpu_relax();
    }
  } while (now_ns() < end_ns);
  return false;
}

void Engine::wait_for_peer(const PeerWait& wait, std::int64_t deadline_ns, bool is_helper) {
  const auto wanted = [&] { return peers_.reached(wait); };
  // A peer that has just submitted comes by itself; ringing would wake a second thread of it.
  if (spin_until(std::min(spin_, kPatience), wanted)) return;
  if (spin_.count() != 0) {
    peers_.ring(wait.rank);
    if (spin_until(spin_, wanted)) return;
  }
  sleeping_on_.store(pack(wait));
  const bool must_go = (!is_helper && helpers_waiting_.load() != 0) || stopping_.load() ||
                       board_.alarm_count() != alarms_seen_;
  if (!must_go) {
    const bool was_rung = peers_.ring(wait.rank);
    peers_.sleep(wait, was_rung ? until(deadline_ns) : std::min(until(deadline_ns), kHandOver));
  }
  sleeping_on_.store(0);
}

void Engine::wait_for_work(const Pending& pending, std::int64_t deadline_ns) {
  const auto wanted = [&] {
    return board_.has_ready() || board_.has_bucket(cursor_) || !pending ||
           board_.alarm_count() != alarms_seen_;
  };
  if (spin_until(spin_, wanted)) return;
  SharedWord& bell = peers_.own().helper_bell;
  const std::uint32_t seen = bell.load(std::memory_order_seq_cst);
  peers_.set_attention(Attention::kHelperAsleep);
  if (!wanted() && !stopping_.load()) futex_wait(bell, seen, until(deadline_ns));
  peers_.set_attention(Attention::kAwake);
}

// Wakes the thread of this process that sleeps in the progress role, wherever it sleeps.
void Engine::kick_sleeper() {
  if (const std::uint64_t packed = sleeping_on_.load(); packed != 0) peers_.wake(unpack(packed));
  peers_.own().helper_bell.fetch_add(1);
  futex_wake_all(peers_.own().helper_bell);
}

void Engine::ring_background() {
  peers_.own().background_bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(peers_.own().background_bell);
}

void Engine::run_background() {
  SharedWord& bell = peers_.own().background_bell;
  std::uint32_t heard = bell.load();
  while (!stopping_.load()) {
    const std::uint32_t seen = bell.load(std::memory_order_seq_cst);
    const bool had_role = take_role(false);
    if (had_role) {
      drive_in_background();
      release_role();
    }
    const Nanoseconds nap = background_nap(had_role, seen != heard);
    heard = seen;
    if (!stopping_.load()) futex_wait(bell, seen, nap);
  }
}

void Engine::drive_in_background() {
  check_stalls();
  while (!stopping_.load() && helpers_waiting_.load() == 0) {
    switch (step(may_form_in_background())) {
      case Step::kProgressed:
        break;
      case Step::kBlocked:
        wait_for_peer(blocked_on_, now_ns() + kSlice.count(), false);
        check_stalls();
        break;
      case Step::kIdle:
        return;
    }
  }
}

bool Engine::may_form_in_background() {
  if (!board_.has_ready()) {
    ready_since_ns_ = 0;
    return false;
  }
  if (ready_since_ns_ == 0) ready_since_ns_ = now_ns();
  return has_enough_ready() || now_ns() - ready_since_ns_ >= linger_.count();
}

// After a ring by this rank it stays alert for a moment, so that a burst of submissions rings once.
Nanoseconds Engine::background_nap(bool had_role, bool was_rung) {
  Nanoseconds nap = std::max(linger_, kAlertness);
  if (was_rung && mood_.load() >= Mood::kAlert) {
    mood_.store(Mood::kAlert);
  } else {
    nap = idle_nap();
  }
  // Only now: who submitted before may have relied on the mood it saw and not rung.
  if (!had_role || is_over_.load() || !board_.has_ready()) return nap;
  if (ready_since_ns_ == 0) ready_since_ns_ = now_ns();
  mood_.store(Mood::kAlert);
  return std::max(Nanoseconds(ready_since_ns_ + linger_.count() - now_ns()), Nanoseconds(1000));
}

// With nothing to do it sleeps until the stall check is due, or until it is rung.
Nanoseconds Engine::idle_nap() {
  const auto stall_interval =
      Nanoseconds(static_cast<std::int64_t>(config_.stall_check_time_s * 1e9)) / 2;
  const bool recently_used =
      now_ns() - last_submit_ns_.load(std::memory_order_relaxed) < stall_interval.count();
  const std::lock_guard guard(mutex_);
  const bool must_watch = config_.stall_check && (recently_used || !tensors_.in_flight().empty());
  const bool is_asleep = config_.stall_check && !must_watch;
  mood_.store(is_asleep ? Mood::kAsleep : Mood::kNapping);
  return must_watch ? std::max(stall_interval, kSlice) : kForever;
}

}  // namespace hvd
