// Peers that are lost, tensors that some rank never submits: every wait ends, with a name.
#include <algorithm>
#include <utility>

#include "runtime/engine.h"

namespace hvd {

namespace {

constexpr std::size_t kNamesPerMessage = 6;

std::string seconds(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

std::string Engine::peer_name(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < config_.peer_names.size() ? config_.peer_names[index]
                                           : "rank " + std::to_string(rank);
}

void Engine::on_peer_death(int rank) {
  if (!peers_.set_liveness(rank, Liveness::kDead) && peers_.liveness(rank) != Liveness::kDead) {
    return;  // it said good-bye before
  }
  recorder_.record(EventKind::kAlarm, static_cast<std::uint32_t>(rank), 0);
  // The first to notice says who it was; ranks that give up because of it are not to blame.
  board_.raise_alarm({.code = ErrorCode::kPeerLost, .rank = rank, .text = loss_text(rank)});
  ring_background();
  kick_sleeper();
}

void Engine::wake_everyone() {
  for (int rank = 0; rank < config_.size; ++rank) {
    for (SharedWord* bell : {&peers_.line(rank).background_bell, &peers_.line(rank).helper_bell}) {
      bell->fetch_add(1, std::memory_order_seq_cst);
      futex_wake_all(*bell);
    }
  }
  for (SharedWord& counter : peers_.own().counters) futex_wake_all(counter);
}

void Engine::handle_alarm() {
  alarms_seen_ = board_.alarm_count();
  if (board_.alarm()) throw cause();
  for (int rank = 0; rank < config_.size; ++rank) {
    has_departures_ = has_departures_ || peers_.liveness(rank) != Liveness::kRunning;
  }
}

std::string Engine::loss_text(int rank) const {
  const bool died = peers_.liveness(rank) == Liveness::kDead;
  return peer_name(rank) + (died ? " died" : " has shut down") +
         "; no further operation can complete";
}

// Why the world is over, as far as anybody knows.
Error Engine::cause() const {
  if (const auto alarm = board_.alarm()) return Error(alarm->code, alarm->text);
  for (int rank = 0; rank < config_.size; ++rank) {  // whose alarm is still being written
    if (peers_.liveness(rank) == Liveness::kDead) {
      return Error(ErrorCode::kPeerLost, loss_text(rank));
    }
  }
  if (const auto rank = board_.first_departure()) {
    return Error(ErrorCode::kPeerLost, loss_text(*rank));
  }
  return Error(ErrorCode::kPeerLost, "another rank has ended; no further operation can complete");
}

// A rank that shut down may have finished its part of what is still under way here: only what needs
// more of it is over. A rank that died ends everything.
bool Engine::is_over_for(int departed) const {
  if (peers_.liveness(departed) == Liveness::kDead) return true;
  const PeerWait done{.rank = departed,
                      .counter = Counter::kFinished,
                      .target = static_cast<std::uint32_t>(backend_.end_block())};
  if (bucket_running_) return !peers_.reached(done);
  return !board_.has_ready() && !board_.has_bucket(cursor_);
}

bool Engine::fail_if_lost() {
  for (int rank = 0; rank < config_.size; ++rank) {
    if (peers_.liveness(rank) == Liveness::kRunning || !is_over_for(rank)) continue;
    // Not the first to leave, when that one had done its part of this bucket.
    const std::optional<int> first = board_.first_departure();
    const bool is_first_to_blame = board_.alarm() || (first && is_over_for(*first));
    fail_everything(is_first_to_blame ? cause() : Error(ErrorCode::kPeerLost, loss_text(rank)));
    return true;
  }
  return false;
}

// The board is held for less than a microsecond, unless the holder died or was stopped inside.
void Engine::check_holder(int holder, Nanoseconds waited) const {
  if (peers_.liveness(holder) == Liveness::kDead) throw cause();
  const double waited_s = static_cast<double>(waited.count()) / 1e9;
  if (!config_.stall_check || config_.stall_shutdown_time_s <= 0) return;
  if (waited_s < config_.stall_shutdown_time_s) return;
  throw Error(ErrorCode::kTimeout, peer_name(holder) + " has not moved for " + seconds(waited_s) +
                                       " while it held the board of submissions");
}

void Engine::note_blocked(const PeerWait& wait) {
  const bool is_new = wait.rank != blocked_on_.rank || wait.counter != blocked_on_.counter ||
                      wait.target != blocked_on_.target;
  if (is_new) {
    blocked_since_ns_ = now_ns();
    blocked_reported_ = false;
    recorder_.record(EventKind::kWait, static_cast<std::uint32_t>(wait.rank), wait.target);
  }
  blocked_on_ = wait;
}

void Engine::check_stalls() {
  if (!config_.stall_check) return;
  const std::int64_t now = now_ns();
  const std::lock_guard guard(mutex_);
  if (bucket_running_ && blocked_on_.rank >= 0) check_stalled_bucket(now - blocked_since_ns_);
  for (Entry* entry : tensors_.in_flight()) check_stalled_entry(*entry, now - entry->submitted_ns);
}

void Engine::check_stalled_bucket(std::int64_t age_ns) {
  const double age_s = static_cast<double>(age_ns) / 1e9;
  if (age_s < config_.stall_check_time_s) return;
  const std::string text = peer_name(blocked_on_.rank) + " has not moved for " + seconds(age_s) +
                           " in the middle of " +
                           (entries_.empty() ? "a collective" : entries_.front()->title());
  if (!std::exchange(blocked_reported_, true)) log(config_.log, LogLevel::kWarning, text);
  if (config_.stall_shutdown_time_s <= 0 || age_s < config_.stall_shutdown_time_s) return;
  board_.raise_alarm({.code = ErrorCode::kTimeout, .rank = blocked_on_.rank, .text = text});
  wake_everyone();
}

void Engine::check_stalled_entry(Entry& entry, std::int64_t age_ns) {
  const double age_s = static_cast<double>(age_ns) / 1e9;
  const bool must_end = config_.stall_shutdown_time_s > 0 && age_s >= config_.stall_shutdown_time_s;
  if (age_s < config_.stall_check_time_s || (entry.stall_reported && !must_end)) return;
  std::vector<int> missing;
  try {
    const SharedLock lock = board_.lock();
    missing = board_.missing_ranks(entry.ref);
  } catch (const Error& error) {
    board_.raise_alarm({.code = error.code(), .rank = config_.rank, .text = error.what()});
    return;
  }
  if (missing.empty()) return;
  std::string who;
  for (const int rank : missing) who += (who.empty() ? "" : ", ") + peer_name(rank);
  const std::string text = entry.title() + " waits for ranks that did not submit it for " +
                           seconds(age_s) + ". Missing ranks: " + list(missing) + " (" + who +
                           "). They may run other operations, be slower or have ended their loop.";
  // One voice is enough: the lowest rank that did submit.
  int speaker = 0;
  while (std::find(missing.begin(), missing.end(), speaker) != missing.end()) ++speaker;
  if (!std::exchange(entry.stall_reported, true) && speaker == config_.rank) {
    log(config_.log, LogLevel::kWarning, text);
  }
  if (must_end) {
    board_.raise_alarm({.code = ErrorCode::kTimeout, .rank = missing.front(), .text = text});
    wake_everyone();
  }
}

}  // namespace hvd
