// Who makes progress and how a thread waits: spinning while every rank has a core, sleeping
// otherwise.
//
// Before a thread sleeps on a peer it rings the peer's bell, unless one of the peer's threads is
// awake: a rank is woken when somebody needs it, not when something happened.
//
// One thread of a process at a time holds the progress role. A thread that waits takes it and runs
// buckets itself, without a hand-over to another thread. The background thread takes it when no
// thread waits, and gives it up between two steps when one does. A half-run bucket stays in the
// engine for the next holder.
//
// With one active lane a thread sleeps on the counter that it needs. With several it registers as a
// listener with every rank that it waits for, and sleeps on its own bell. An idle engine does not
// wake, but for one last look of the stall check after the last submission.
#include <algorithm>
#include <utility>
#include <vector>

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

// What the sleeping thread waits for, packed: a counter of a process set, or the background bell.
constexpr std::uint64_t kNothing = 0;
constexpr std::uint64_t kBackgroundDoorbell = ~std::uint64_t{0};
// Shorter waits for results are in no recording.
constexpr Nanoseconds kLongBlock = std::chrono::microseconds(20);

std::uint64_t pack(int set, const PeerWait& wait) {
  return 1 + (static_cast<std::uint64_t>(set) << 32) +
         (static_cast<std::uint64_t>(wait.rank) << 8) +
         (static_cast<std::uint64_t>(wait.counter) << 1);
}

PeerWait unpack(std::uint64_t packed) {
  return {.rank = static_cast<int>((packed >> 8) & 0xffffff),
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
  if (pending && !is_carried_ && take_role(false)) {
    while (pending && step(true) == Step::kProgressed) {
    }
    if (release_role()) ring_background();
    deliver();
  }
  return !pending;
}

bool Engine::wait(HandleId handle, Nanoseconds limit) {
  const Pending pending = this->pending(handle);
  if (!pending) return true;
  const std::int64_t begin_ns = now_ns();
  const std::int64_t deadline_ns = begin_ns + limit.count();
  bool has_more = false;
  while (pending && now_ns() < deadline_ns) {
    if (is_carried_ && background_id_.load() != std::this_thread::get_id()) {
      await_background(pending, deadline_ns);
      continue;
    }
    if (!take_role(true)) continue;
    drive_until(pending, std::min(deadline_ns, now_ns() + kSlice.count()));
    has_more = release_role();
    deliver();
  }
  // What became ready meanwhile and nobody waits for.
  if (!pending && has_more) ring_background();
  if (pending) {
    counters_.blocked_ns.add_shared(static_cast<std::uint64_t>(limit.count()));
    std::int64_t none = 0;  // the caller comes back, and it is one wait
    blocked_since_ns_.compare_exchange_strong(none, begin_ns);
  } else {
    note_blocked(begin_ns);
  }
  return !pending;
}

// A wait that began at `begin_ns` is over.
void Engine::note_blocked(std::int64_t begin_ns) {
  const std::int64_t done_ns = last_done_ns_.load();
  if (const auto blocked_ns = done_ns - begin_ns; blocked_ns > 0) {
    counters_.blocked_ns.add_shared(static_cast<std::uint64_t>(blocked_ns));
  }
  const std::int64_t since_ns = blocked_since_ns_.exchange(0);
  const std::int64_t whole_ns = done_ns - (since_ns == 0 ? begin_ns : since_ns);
  if (whole_ns < kLongBlock.count()) return;
  recorder_.record({.time_ns = done_ns,
                    .kind = EventKind::kBlocked,
                    .value = static_cast<std::uint64_t>(whole_ns)});
}

void Engine::leave_to_background() { ring_background(); }

void Engine::await_background(const Pending& pending, std::int64_t deadline_ns) {
  onlookers_.fetch_add(1);
  if (is_left_to_background() && (has_ready() || spans_hosts())) ring_background();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, until(deadline_ns), [&] { return !pending || stopping_.load(); });
  onlookers_.fetch_sub(1);
}

void Engine::note_unattended() {
  is_unattended_.store(is_carried_ || handles_.continued_count() != 0);
}

// A helper waits a moment for the role and asks the background thread to give it up.
bool Engine::take_role(bool as_helper) {
  std::unique_lock lock(mutex_);
  if (role_taken_ && as_helper) {
    helpers_waiting_.fetch_add(1);
    wake_sleeper();
    changed_.wait_for(lock, std::chrono::milliseconds(1));
    helpers_waiting_.fetch_sub(1);
  }
  if (role_taken_ || stopping_.load()) return false;
  role_taken_ = true;
  presence_.set_wait_state(WaitState::kAwake);
  return true;
}

bool Engine::release_role() {
  presence_.set_wait_state(WaitState::kBackground);
  const std::lock_guard guard(mutex_);
  role_taken_ = false;
  if (helpers_waiting_.load() != 0 || stopping_.load()) changed_.notify_all();
  // Other hosts cannot ring: as long as something is under way, somebody must listen to them.
  const bool must_watch = has_device_work_.load() && !is_device_watched_.load();
  return has_ready() || is_unattended_.load() || must_watch ||
         (spans_hosts() && has_active_context());
}

void Engine::drive_until(const Pending& pending, std::int64_t deadline_ns) {
  std::int64_t moved_ns = now_ns();
  while (pending && !has_landed_.load() && !stopping_.load(std::memory_order_relaxed)) {
    const Step step = this->step(true);
    if (step == Step::kProgressed) {
      if (spans_hosts()) moved_ns = now_ns();
      continue;
    }
    ProcessSetContext* only = only_active_context();
    if (spans_hosts()) {
      if (is_brief() && now_ns() - moved_ns < spin_.count()) continue;
      wait_for_hosts(deadline_ns, true);
      moved_ns = now_ns();
    } else if (step == Step::kIdle) {
      wait_for_work(pending, deadline_ns);
    } else if (only != nullptr && !only->blocked_on.is_polled) {
      wait_for_peer(*only, deadline_ns, true);
    } else {
      wait_for_any(deadline_ns, true);
    }
    if (now_ns() >= deadline_ns) {
      check_stalls();
      return;
    }
  }
}

ProcessSetContext* Engine::only_active_context() const {
  ProcessSetContext* only = nullptr;
  int count = 0;
  for_each_context([&](ProcessSetContext& context) {
    if (!context.is_active()) return;
    only = &context;
    ++count;
  });
  return count == 1 ? only : nullptr;
}

bool Engine::can_progress(bool may_form) const {
  bool found = false;
  for_each_context([&](const ProcessSetContext& context) {
    found = found || (context.is_active() && context.can_progress(may_form));
  });
  return found;
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

void Engine::wait_for_peer(ProcessSetContext& context, std::int64_t deadline_ns, bool is_helper) {
  const PeerWait wait = context.blocked_on;
  const int rank = context.local[static_cast<std::size_t>(wait.rank)];
  const auto wanted = [&] { return context.peers.reached(wait); };
  // A peer that has just submitted comes by itself; ringing would wake a second thread of it.
  if (spin_until(std::min(spin_, kPatience), wanted)) return;
  if (spin_.count() != 0) {
    presence_.ring(rank);
    if (spin_until(spin_, wanted)) return;
  }
  // Before it says that it sleeps: who kicks it between that and the sleep does so in vain.
  const bool was_rung = presence_.ring(rank);
  sleeping_on_.store(pack(context.id, wait));
  if (!must_look_up(is_helper) && only_active_context() == &context) {
    context.peers.sleep(wait,
                        was_rung ? until(deadline_ns) : std::min(until(deadline_ns), kHandOver));
  }
  sleeping_on_.store(kNothing);
}

// Several process sets are under way: whichever can go on first.
void Engine::wait_for_any(std::int64_t deadline_ns, bool is_helper) {
  const auto wanted = [&] { return can_progress(is_helper || may_form_in_background()); };
  if (spin_until(std::min(spin_, kPatience), wanted)) return;
  std::vector<std::pair<ProcessSetContext*, PeerWait>> waits;
  for_each_context([&](ProcessSetContext& context) {
    if (context.is_running && context.blocked_on.rank >= 0)
      waits.emplace_back(&context, context.blocked_on);
    if (context.is_running && context.blocked_on.is_polled) {
      deadline_ns = std::min(deadline_ns, context.look_at_ns);
    }
  });
  bool was_rung = ring_all(waits);
  if (spin_.count() != 0) {
    if (spin_until(spin_, wanted)) return;
    was_rung = ring_all(waits);
  }
  const std::uint32_t seen = doorbell(is_helper).load(std::memory_order_seq_cst);
  for (const auto& [context, wait] : waits) context->peers.listen(wait);
  say_asleep(is_helper);
  if (!must_look_up(is_helper) && !wanted()) {
    Nanoseconds limit = was_rung ? until(deadline_ns) : std::min(until(deadline_ns), kHandOver);
    if (!is_helper && ready_since_ns_ != 0) limit = std::min(limit, lingering());
    futex_wait(doorbell(is_helper), seen, limit);
  }
  sleeping_on_.store(kNothing);
  presence_.set_wait_state(WaitState::kAwake);
  for (const auto& [context, wait] : waits) context->peers.unlisten(wait);
}

// False when some of the peers are awake already.
bool Engine::ring_all(const std::vector<std::pair<ProcessSetContext*, PeerWait>>& waits) const {
  bool was_rung = true;
  for (const auto& [context, wait] : waits) {
    was_rung &= presence_.ring(context->local[static_cast<std::size_t>(wait.rank)]);
  }
  return was_rung;
}

SharedWord& Engine::doorbell(bool is_helper) const {
  return is_helper ? presence_.helper_doorbell() : presence_.background_doorbell();
}

// From here on the holder of the progress role is to be reached by its bell.
void Engine::say_asleep(bool is_helper) {
  if (!is_helper) {
    sleeping_on_.store(kBackgroundDoorbell);
    wake_policy_.store(WakePolicy::kNapping);  // whoever makes something ready shall ring
  }
  presence_.set_wait_state(is_helper ? WaitState::kHelperAsleep : WaitState::kBackground);
}

// Is there something else than a peer's counter to look at?
bool Engine::must_look_up(bool is_helper) const {
  return (!is_helper && helpers_waiting_.load() != 0) || stopping_.load() ||
         alarms_.count() != alarms_seen_;
}

void Engine::wait_for_work(const Pending& pending, std::int64_t deadline_ns) {
  const auto wanted = [&] {
    return can_progress(true) || !pending || alarms_.count() != alarms_seen_;
  };
  if (spin_until(spin_, wanted)) return;
  SharedWord& doorbell = presence_.helper_doorbell();
  const std::uint32_t seen = doorbell.load(std::memory_order_seq_cst);
  presence_.set_wait_state(WaitState::kHelperAsleep);
  if (!wanted() && !stopping_.load()) futex_wait(doorbell, seen, until(deadline_ns));
  presence_.set_wait_state(WaitState::kAwake);
}

// The process set for whose counter this process' thread sleeps; -1 for none.
int Engine::sleeping_set() const {
  const std::uint64_t packed = sleeping_on_.load();
  return packed == kNothing || packed == kBackgroundDoorbell ? -1 : static_cast<int>(packed >> 32);
}

// Wakes the thread of this process that sleeps in the progress role, wherever it sleeps.
void Engine::wake_sleeper() {
  const std::uint64_t packed = sleeping_on_.load();
  if (packed == kBackgroundDoorbell) {
    ring_background();
  } else if (packed != kNothing) {
    if (ProcessSetContext* context = contexts_[packed >> 32].load())
      context->peers.wake(unpack(packed));
  }
  presence_.ring_own(presence_.helper_doorbell());
}

void Engine::ring_background() { presence_.ring_own(presence_.background_doorbell()); }

void Engine::run_background() {
  background_id_.store(std::this_thread::get_id());
  SharedWord& doorbell = presence_.background_doorbell();
  std::uint32_t heard = doorbell.load();
  while (!stopping_.load()) {
    const std::uint32_t seen = doorbell.load(std::memory_order_seq_cst);
    const bool had_role = take_role(false);
    if (had_role) {
      const bool has_landed = drive_in_background();
      release_role();
      if (deliver() || has_landed) continue;  // more may be ready, or half done
    }
    Nanoseconds nap = background_nap(had_role, seen != heard);
    heard = seen;
    is_device_watched_.store(has_device_work_.load());
    if (is_device_watched_.load()) nap = std::min<Nanoseconds>(nap, kSlice);
    if (!stopping_.load()) futex_wait(doorbell, seen, nap);
  }
}

bool Engine::drive_in_background() {
  check_stalls();
  while (!stopping_.load() && helpers_waiting_.load() == 0) {
    if (has_landed_.load()) return true;
    switch (step(may_form_in_background())) {
      case Step::kProgressed:
        break;
      case Step::kBlocked: {
        const std::int64_t deadline_ns = now_ns() + kSlice.count();
        ProcessSetContext* only = only_active_context();
        if (spans_hosts()) {
          wait_for_hosts(deadline_ns, false);
        } else if (only != nullptr && !only->blocked_on.is_polled) {
          wait_for_peer(*only, deadline_ns, false);
        } else {
          wait_for_any(deadline_ns, false);
        }
        check_stalls();
        break;
      }
      case Step::kIdle:
        if (!spans_hosts() || is_over_.load() || !has_active_context()) return has_landed_.load();
        wait_for_hosts(now_ns() + kSlice.count(), false);
        check_stalls();
        break;
    }
  }
  return false;
}

bool Engine::may_form_in_background() {
  if (!has_ready()) {
    ready_since_ns_ = 0;
    return false;
  }
  if (ready_since_ns_ == 0) ready_since_ns_ = now_ns();
  std::size_t bytes = 0;
  for_each_context(
      [&](const ProcessSetContext& context) { bytes += context.negotiation.ready_bytes(); });
  if (is_enough(bytes) || onlookers_.load() != 0) return true;
  return now_ns() - ready_since_ns_ >= linger().count();
}

// After a ring by this rank it stays alert for a moment, so that a burst of submissions rings once.
Nanoseconds Engine::background_nap(bool had_role, bool was_rung) {
  Nanoseconds nap = std::max(linger(), kAlertness);
  if (was_rung && wake_policy_.load() >= WakePolicy::kAlert) {
    wake_policy_.store(WakePolicy::kAlert);
  } else {
    nap = idle_nap();
  }
  // Only now: who submitted before may have relied on the mood it saw and not rung.
  if (!had_role || is_over_.load()) return nap;
  {
    const std::lock_guard guard(mutex_);
    if (!has_ready() && !missed_something()) {
      // What nobody waits for may need a rank that is gone.
      const bool must_look = has_departures_.load() && is_unattended_.load();
      return must_look ? std::min<Nanoseconds>(nap, kSlice) : nap;
    }
  }
  if (ready_since_ns_ == 0) ready_since_ns_ = now_ns();
  wake_policy_.store(WakePolicy::kAlert);
  return lingering();
}

// Under mutex_, before a long sleep. Results that nobody waits for need no other rank's help, so no
// rank rings for them: from here on those that make something ready do.
bool Engine::missed_something() {
  if (!is_unattended_.load()) return false;
  presence_.expect();
  return !role_taken_ && (has_ready() || can_progress(false));
}

// How long what is ready waits for more to come.
Nanoseconds Engine::lingering() const {
  return std::max(Nanoseconds(ready_since_ns_ + linger().count() - now_ns()), Nanoseconds(1000));
}

// With nothing to do it sleeps until the stall check is due, or until it is rung.
Nanoseconds Engine::idle_nap() {
  const auto stall_interval =
      Nanoseconds(static_cast<std::int64_t>(config_.stall_check_time_s * 1e9)) / 2;
  const bool recently_used =
      now_ns() - last_submit_ns_.load(std::memory_order_relaxed) < stall_interval.count();
  bool is_active = false;
  const std::lock_guard guard(mutex_);
  for_each_context(
      [&](const ProcessSetContext& context) { is_active = is_active || context.is_active(); });
  const bool must_watch = config_.stall_check && (recently_used || is_active);
  const bool is_asleep = config_.stall_check && !must_watch;
  wake_policy_.store(is_asleep ? WakePolicy::kAsleep : WakePolicy::kNapping);
  return must_watch ? std::max(stall_interval, kSlice) : kForever;
}

}  // namespace hvd
