#include "runtime/peer_waits.h"

#include <sched.h>

#include <algorithm>
#include <ctime>

namespace hvd {

namespace {

constexpr Nanoseconds kSpin = std::chrono::microseconds(50);
// An awake peer may leave the progress role without noticing that it is needed. So ask again.
constexpr Nanoseconds kHandOver = std::chrono::milliseconds(1);
// A peer in the middle of a call needs less.
constexpr Nanoseconds kShortSpin = std::chrono::microseconds(10);
// Reading the clock costs more than reading a word, so it is read less often.
constexpr int kLooksPerClock = 64;
constexpr std::size_t kBriefBytes = 64 * 1024;

}  // namespace

Nanoseconds slice_until(std::int64_t deadline_ns) {
  return std::clamp(Nanoseconds(deadline_ns - now_ns()), Nanoseconds(0), kWaitSlice);
}

PeerWaits::PeerWaits(const CommonParts& common, const Membership& membership, FormingDelay& delay)
    : CommonParts(common),
      presence_(world_.presence),
      membership_(membership),
      delay_(delay),
      has_own_core_(world_.config.usable_cores >= world_.config.local_size &&
                    world_.config.usable_cores > 1) {}

void PeerWaits::wait(std::int64_t deadline_ns, bool is_helper) {
  if (world_.spans_hosts()) return wait_for_hosts(deadline_ns, is_helper);
  ProcessSetContext* only = sets_.only_active();
  if (only == nullptr || only->blocked_on.is_polled) return wait_for_any(deadline_ns, is_helper);
  wait_for_peer(*only, deadline_ns, is_helper);
}

// Spinning is allowed if all buckets under way are small, or if there are none and a decision is
// awaited.
bool PeerWaits::may_spin(std::int64_t moved_ns) const {
  const bool is_brief = !sets_.any_of([](const ProcessSetContext& context) {
    return context.is_running && context.bucket_bytes > kBriefBytes;
  });
  return has_own_core_ && is_brief && now_ns() - moved_ns < kSpin.count();
}

bool PeerWaits::spin_until(Nanoseconds limit, auto&& condition) const {
  const std::int64_t end_ns = now_ns() + limit.count();
  const int looks = has_own_core_ ? kLooksPerClock : 1;
  do {
    for (int look = 0; look < looks; ++look) {
      if (condition()) return true;
      has_own_core_ ? cpu_relax() : static_cast<void>(sched_yield());
    }
  } while (now_ns() < end_ns);
  return false;
}

// Whether the thread must stop waiting for a peer's counter.
bool PeerWaits::must_look_up(bool is_helper) const {
  return (!is_helper && role_.is_wanted()) || role_.is_closed() || membership_.has_new_alarm();
}

bool PeerWaits::can_progress(bool is_helper) {
  return sets_.can_progress(is_helper || delay_.may_form());
}

void PeerWaits::wait_for_peer(ProcessSetContext& context, std::int64_t deadline_ns,
                              bool is_helper) {
  const PeerWait wait = context.blocked_on;
  const int rank = context.local[static_cast<std::size_t>(wait.rank)];
  const auto wanted = [&] { return context.peers.reached(wait); };
  // A peer that has just submitted arrives by itself. A ring would wake a second thread of it.
  if (spin_until(kShortSpin, wanted)) return;
  presence_.ring(rank);
  if (spin_until(kSpin, wanted)) return;
  // Ring first: a wake-up between the announcement and the sleep would be lost.
  const bool was_rung = presence_.ring(rank);
  doorbells_.sleep_on(context, wait);
  if (!must_look_up(is_helper) && sets_.only_active() == &context) {
    const Nanoseconds limit = slice_until(deadline_ns);
    context.peers.sleep(wait, was_rung ? limit : std::min(limit, kHandOver));
  }
  doorbells_.end_sleep();
}

Doorbells::Waits PeerWaits::waits(std::int64_t& deadline_ns) const {
  Doorbells::Waits waits;
  sets_.for_each([&](ProcessSetContext& context) {
    if (!context.is_running) return;
    if (context.blocked_on.rank >= 0) waits.emplace_back(&context, context.blocked_on);
    if (context.blocked_on.is_polled) deadline_ns = std::min(deadline_ns, context.look_at_ns);
  });
  return waits;
}

void PeerWaits::sleep_as_listener(const Doorbells::Waits& waits, bool is_helper, Nanoseconds limit,
                                  auto&& sleep) {
  for (const auto& [context, wait] : waits) context->peers.listen(wait);
  doorbells_.sleep_on_doorbell(is_helper);
  if (!must_look_up(is_helper) && !can_progress(is_helper)) {
    if (!is_helper && delay_.has_begun()) limit = std::min(limit, delay_.left());
    sleep(limit);
  }
  doorbells_.end_sleep();
  presence_.set_wait_state(WaitState::kAwake);
  for (const auto& [context, wait] : waits) context->peers.unlisten(wait);
}

// Several process sets are under way. Waits until one of them can go on.
void PeerWaits::wait_for_any(std::int64_t deadline_ns, bool is_helper) {
  const auto wanted = [&] { return can_progress(is_helper); };
  if (spin_until(kShortSpin, wanted)) return;
  const Doorbells::Waits waits = this->waits(deadline_ns);
  doorbells_.ring(waits);
  if (spin_until(kSpin, wanted)) return;
  const bool was_rung = doorbells_.ring(waits);
  SharedWord& doorbell = doorbells_.own(is_helper);
  const std::uint32_t seen = doorbell.load(std::memory_order_seq_cst);
  const Nanoseconds limit = slice_until(deadline_ns);
  sleep_as_listener(waits, is_helper, was_rung ? limit : std::min(limit, kHandOver),
                    [&](Nanoseconds left) { futex_wait(doorbell, seen, left); });
}

void PeerWaits::wait_for_work(const Pending& pending, std::int64_t deadline_ns) {
  const auto wanted = [&] {
    return sets_.can_progress(true) || !pending || membership_.has_new_alarm();
  };
  if (spin_until(kSpin, wanted)) return;
  SharedWord& doorbell = presence_.helper_doorbell();
  const std::uint32_t seen = doorbell.load(std::memory_order_seq_cst);
  presence_.set_wait_state(WaitState::kHelperAsleep);
  if (!wanted() && !role_.is_closed()) futex_wait(doorbell, seen, slice_until(deadline_ns));
  presence_.set_wait_state(WaitState::kAwake);
}

// Rings the ranks of this host that this rank needs to go on.
void PeerWaits::ask_for_help() const {
  sets_.for_each([&](const ProcessSetContext& context) {
    if (!context.is_active()) return;
    if (context.is_running && context.blocked_on.rank >= 0)
      presence_.ring(context.awaited(context.blocked_on));
    // Only the leader receives decisions, and sends buckets to other hosts.
    if (context.spans_hosts() && !context.is_leader()) presence_.ring(context.local.front());
  });
}

std::vector<pollfd> PeerWaits::polls() const {
  std::vector<pollfd> polls{
      {.fd = presence_.doorbell_descriptor(), .events = POLLIN, .revents = 0}};
  sets_.for_each([&](const ProcessSetContext& context) {
    if (!context.is_active()) return;
    if (context.relay != nullptr) context.relay->add_polls(polls);
    if (context.is_running && context.backend != nullptr) context.backend->add_polls(polls);
  });
  return polls;
}

// Waits until a socket is ready, a rank of this host rings, or one of its counters moves.
void PeerWaits::wait_for_hosts(std::int64_t deadline_ns, bool is_helper) {
  const Doorbells::Waits waits = this->waits(deadline_ns);
  ask_for_help();
  presence_.beat();
  std::vector<pollfd> polls = this->polls();
  presence_.begin_polling();
  sleep_as_listener(waits, is_helper, slice_until(deadline_ns), [&](Nanoseconds left) {
    const timespec timeout{.tv_sec = 0, .tv_nsec = left.count()};
    ppoll(polls.data(), polls.size(), &timeout, nullptr);
  });
  presence_.end_polling();
}

}  // namespace hvd
