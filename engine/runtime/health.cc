// Peers that are lost, and what a bucket waits for: every wait ends, with a name.
//
// A rank that shuts down after its own part of a bucket does not end that bucket for the others.
// Process sets without it go on. A rank that fails because of one set takes part in no other set
// either. It says so, so that no rank waits for it there.
#include <algorithm>
#include <set>
#include <utility>

#include "core/text.h"
#include "runtime/engine.h"

namespace hvd {

namespace {

// Of a message between hosts, at worst: TCP may have to send it five times over.
constexpr auto kLatency = std::chrono::seconds(5);

// Worth an event of its own when it is over.
constexpr Nanoseconds kLongWait = std::chrono::microseconds(20);

WaitPhase phase_of(const PeerWait& wait) {
  if (wait.is_polled) return WaitPhase::kDataPlane;
  return wait.rank < 0 ? WaitPhase::kLink : static_cast<WaitPhase>(wait.counter);
}

}  // namespace

std::string Engine::peer_name(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < config_.peer_names.size() ? config_.peer_names[index]
                                           : "rank " + std::to_string(rank);
}

std::string Engine::title(const ProcessSetContext& context, const Entry& entry) const {
  return entry.title() + context.suffix();
}

// Is this the lowest rank of its host that is still there?
bool Engine::speaks_for_host() const {
  for (int rank = 0; rank < config_.rank; ++rank) {
    if (presence_.is_local(rank) && presence_.liveness(rank) == Liveness::kRunning) return false;
  }
  return true;
}

void Engine::on_peer_death(int rank) {
  if (!presence_.set_liveness(rank, Liveness::kDead) &&
      presence_.liveness(rank) != Liveness::kDead) {
    return;  // it said good-bye before
  }
  recorder_.record_now({.kind = EventKind::kAlarm, .subject = static_cast<std::uint32_t>(rank)});
  if (speaks_for_host()) tracer_->want_file("death", loss_text(rank), rank);
  // The first to notice says who it was; ranks that give up because of it are not to blame.
  alarms_.raise(
      {.code = ErrorCode::kPeerLost, .rank = rank, .text = loss_text(rank), .ranks = {rank}});
  tell_other_hosts();
  ring_background();
  const std::lock_guard guard(mutex_);
  wake_sleeper();
}

void Engine::end_world(const std::string& reason) {
  alarms_.raise({.code = ErrorCode::kInternal, .rank = config_.rank, .text = reason});
  wake_everyone();
  ring_background();  // which tells the other hosts
}

void Engine::wake_everyone() {
  presence_.ring_all_doorbells();
  for_each_context([](ProcessSetContext& context) { context.peers.wake_sleepers(); });
}

void Engine::handle_alarm() {
  alarms_seen_ = alarms_.count();
  if (alarms_.first()) throw cause();
  for (int rank = 0; rank < config_.size; ++rank) {
    if (presence_.liveness(rank) != Liveness::kRunning) has_departures_.store(true);
  }
}

std::string Engine::loss_text(int rank) const {
  const Liveness liveness = presence_.liveness(rank);
  const char* what = liveness == Liveness::kDead     ? " died"
                     : liveness == Liveness::kFailed ? " has given up"
                                                     : " has shut down";
  return peer_name(rank) + what + "; no further operation can complete";
}

// The error that an alarm stands for.
Error Engine::error_of(const Alarm& alarm) const {
  std::set<std::string> hosts;
  for (const int rank : alarm.ranks) {
    const auto index = static_cast<std::size_t>(rank);
    hosts.insert(index < config_.peer_hosts.size() ? config_.peer_hosts[index] : "");
  }
  return Error(alarm.code, alarm.text,
               {.ranks = alarm.ranks,
                .host = hosts.size() == 1 ? *hosts.begin() : "",
                .operation = alarm.operation});
}

// That `rank` has ended. One that shut down or gave up may be on its way to another world.
Error Engine::loss_of(int rank) const {
  Alarm alarm{.code = ErrorCode::kPeerLost, .rank = rank, .text = loss_text(rank)};
  if (presence_.liveness(rank) == Liveness::kDead) alarm.ranks = {rank};
  return error_of(alarm);
}

// Why the world is over, as far as this rank knows.
Error Engine::cause() const {
  if (const auto alarm = alarms_.first()) return error_of(*alarm);
  for (int rank = 0; rank < config_.size; ++rank) {  // whose alarm is still being written
    if (presence_.liveness(rank) == Liveness::kDead) return loss_of(rank);
  }
  if (const auto rank = alarms_.first_departure()) return loss_of(*rank);
  return Error(ErrorCode::kPeerLost, "another rank has ended; no further operation can complete");
}

// A rank that shut down may have finished its part of what is still under way here: only what needs
// more of it is over. A rank that died ends everything.
bool Engine::is_over_for(const ProcessSetContext& context, int departed) const {
  if (presence_.liveness(departed) == Liveness::kDead) return true;
  if (context.set_rank_of(departed) < 0) return false;
  const auto at = std::ranges::find(context.local, departed);
  // Of another host: what it owes a bucket may be on its way; if not, the link will tell.
  if (at == context.local.end() && context.is_running) return false;
  const PeerWait done{.rank = static_cast<int>(at - context.local.begin()),
                      .counter = Counter::kFinished,
                      .target = static_cast<std::uint32_t>(context.backend->end_block())};
  if (context.is_running) return !context.peers.reached(done);
  return !context.negotiation.has_ready() && !context.negotiation.has_bucket(context.cursor);
}

// What a rank of another host took part in before it left may be on its way here, behind the news.
bool Engine::may_still_answer(int departed) {
  if (presence_.is_local(departed) || presence_.liveness(departed) == Liveness::kDead) return false;
  std::int64_t& seen_ns = departures_ns_[static_cast<std::size_t>(departed)];
  if (seen_ns == 0) seen_ns = now_ns();
  return now_ns() - seen_ns < Nanoseconds(kLatency).count();
}

// The world is over when something under way needs a rank that is gone; sets of other ranks go on.
bool Engine::fail_if_lost() {
  const auto is_needed = [&](int departed) {
    bool found = false;
    for_each_context([&](const ProcessSetContext& context) {
      found = found || (context.is_active() && is_over_for(context, departed));
    });
    return found;
  };
  for (int rank = 0; rank < config_.size; ++rank) {
    if (presence_.liveness(rank) == Liveness::kRunning || may_still_answer(rank)) continue;
    if (!is_needed(rank)) continue;
    // Not the first to leave, when that one had done its part of this bucket.
    const std::optional<int> first = alarms_.first_departure();
    const bool is_first_to_blame = alarms_.first() || (first && is_needed(*first));
    give_up(is_first_to_blame ? cause() : loss_of(rank));
    return true;
  }
  return false;
}

// The board is held for less than a microsecond, unless the holder died or was stopped inside.
void Engine::check_holder(int holder, Nanoseconds waited) const {
  if (presence_.liveness(holder) == Liveness::kDead) throw cause();
  const double waited_s = static_cast<double>(waited.count()) / 1e9;
  if (!config_.stall_check || config_.stall_shutdown_time_s <= 0) return;
  if (waited_s < config_.stall_shutdown_time_s) return;
  throw error_of({.code = ErrorCode::kTimeout,
                  .rank = holder,
                  .text = peer_name(holder) + " has not moved for " + seconds_text(waited_s) +
                          " while it held the board of submissions",
                  .ranks = {holder}});
}

// `resumed_ns`: when it went on after the wait before; 0 for the first one.
void Engine::note_blocked(ProcessSetContext& context, const PeerWait& wait,
                          std::int64_t resumed_ns) {
  if (wait.is_polled) context.look_at_ns = now_ns() + context.backend->pause().count();
  if (wait == context.blocked_on) return;
  if (resumed_ns != 0) end_wait(context, resumed_ns);
  context.blocked_since_ns = now_ns();
  context.blocked_reported = false;
  context.watched_rank = -1;
  context.blocked_on = wait;
  recorder_.record({.time_ns = context.blocked_since_ns,
                    .kind = EventKind::kWait,
                    .detail = static_cast<std::uint8_t>(phase_of(wait)),
                    .process_set = static_cast<std::uint16_t>(context.id),
                    .subject = static_cast<std::uint32_t>(context.awaited(wait)),
                    .value = wait.target});
}

void Engine::end_wait(ProcessSetContext& context, std::int64_t now) {
  const std::int64_t waited_ns = now - context.blocked_since_ns;
  context.waited_ns += waited_ns;
  if (waited_ns >= kLongWait.count()) {
    recorder_.record({.time_ns = now,
                      .kind = EventKind::kWaited,
                      .detail = static_cast<std::uint8_t>(phase_of(context.blocked_on)),
                      .process_set = static_cast<std::uint16_t>(context.id),
                      .subject = static_cast<std::uint32_t>(context.awaited(context.blocked_on)),
                      .value = static_cast<std::uint64_t>(waited_ns)});
  }
  context.blocked_on = {};
}

}  // namespace hvd
