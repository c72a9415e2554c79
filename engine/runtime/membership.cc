#include "runtime/membership.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace hvd {

namespace {

// The longest time of a message between hosts. TCP may have to send it five times.
constexpr auto kLatency = std::chrono::seconds(5);
// After a connection is closed, the news that its rank left may take so long.
constexpr Nanoseconds kNewsPatience = std::chrono::seconds(1);
constexpr Nanoseconds kNewsInterval = std::chrono::milliseconds(5);

}  // namespace

Membership::Membership(const CommonParts& common, Tracer& tracer)
    : CommonParts(common),
      tracer_(tracer),
      departures_ns_(static_cast<std::size_t>(world_.config.size)) {}

void Membership::watch(std::vector<WatchedProcess> processes, const std::vector<LeaderLink>& news) {
  std::vector<int> descriptors;
  if (!news.empty()) {
    news_ = std::make_unique<News>(news, world_.hosts, world_.config.rank);
    descriptors = news_->descriptors();
    connect_tracer();
  }
  watcher_ = std::make_unique<Watcher>(
      std::move(processes), [this](int rank) { on_peer_death(rank); }, std::move(descriptors),
      [this](std::size_t index) { return on_news(index); });
}

// Connects the tracer of a leader with the tracers of other leaders.
void Membership::connect_tracer() {
  std::map<int, int> leaders;
  for (const std::vector<int>& host : world_.hosts) {
    for (const int rank : host) leaders[rank] = host.front();
  }
  tracer_.connect(std::move(leaders),
                  [this](int leader, NoteKind kind, int rank, const std::string& text) {
                    return news_->send_note(leader, kind, rank, text);
                  });
}

void Membership::abandon() {
  static_cast<void>(watcher_.release());
  if (news_ != nullptr) news_->close_copies();
}

// Whether this is the lowest running rank of its host.
bool Membership::speaks_for_host() const {
  for (int rank = 0; rank < world_.config.rank; ++rank) {
    if (world_.presence.is_local(rank) && world_.presence.liveness(rank) == Liveness::kRunning)
      return false;
  }
  return true;
}

void Membership::on_peer_death(int rank) {
  if (!world_.presence.set_liveness(rank, Liveness::kDead) &&
      world_.presence.liveness(rank) != Liveness::kDead) {
    return;  // it has left before
  }
  tracer_.recorder().record_now(
      {.kind = EventKind::kAlarm, .subject = static_cast<std::uint32_t>(rank)});
  const std::string text = failures_.loss_text(rank);
  if (speaks_for_host()) tracer_.want_file("death", text, rank);
  // The first rank that notices names the dead rank. Ranks that give up because of it are not
  // named.
  world_.alarms.raise({.code = ErrorCode::kPeerLost, .rank = rank, .text = text, .ranks = {rank}});
  tell_other_hosts();
  doorbells_.ring_background();
  const std::lock_guard guard(lock_.mutex);
  doorbells_.wake_holder();
}

void Membership::end_world(const std::string& reason) {
  world_.alarms.raise({.code = ErrorCode::kInternal, .rank = world_.config.rank, .text = reason});
  doorbells_.wake_everyone();
  doorbells_.ring_background();  // it tells the other hosts
}

void Membership::leave(Liveness liveness) {
  world_.presence.set_liveness(world_.config.rank, liveness);
  world_.alarms.touch();
  tell_other_hosts();
  doorbells_.wake_everyone();
}

void Membership::tell_other_hosts() {
  if (news_ == nullptr) return;
  // Causes first. A rank fails because of another rank or an alarm. The alarm may have come from
  // another host, and some hosts may not know it yet.
  if (const auto alarm = world_.alarms.first()) news_->tell_alarm(*alarm);
  for (const bool has_failed : {false, true}) {
    for (int rank = 0; rank < world_.config.size; ++rank) {
      const Liveness liveness = world_.presence.liveness(rank);
      if (!world_.presence.is_local(rank) || liveness == Liveness::kRunning) continue;
      if ((liveness == Liveness::kFailed) == has_failed) news_->tell_departure(rank, liveness);
    }
  }
}

// False when the link broke.
bool Membership::on_news(std::size_t index) {
  std::string loss;
  const int leader = news_->leader(index);
  try {
    if (news_->hear(index, [&](const NewsItem& item) { hear(leader, item); }, loss)) return true;
    lose_host(leader, loss);
  } catch (const BadMessage& bad) {
    failures_.raise(bad, leader);
    tell_other_hosts();
    doorbells_.wake_everyone();
  }
  return false;
}

void Membership::hear(int leader, const NewsItem& item) {
  if (item.note != NoteKind::kNone) {
    tracer_.hear(leader, item.note, item.alarm.rank, item.alarm.text);
    return;
  }
  if (item.liveness == Liveness::kRunning) {
    world_.alarms.raise(item.alarm);
  } else {
    world_.presence.set_liveness(item.alarm.rank, item.liveness);
    if (item.liveness == Liveness::kLeft) world_.alarms.note_departure(item.alarm.rank);
    world_.alarms.touch();
  }
  doorbells_.wake_everyone();
}

// A leader that shuts down sends news first. If its connection closes without news, it has died, or
// the network has failed.
void Membership::lose_host(int leader, const std::string& reason) {
  if (world_.presence.liveness(leader) != Liveness::kRunning) return;
  tracer_.recorder().record_now(
      {.kind = EventKind::kAlarm, .subject = static_cast<std::uint32_t>(leader)});
  // The alarm first: a thread that finds the leader dead reads the reason.
  failures_.raise_link_loss(leader, reason);
  world_.presence.set_liveness(leader, Liveness::kDead);
  doorbells_.wake_everyone();
}

std::optional<Error> Membership::find_end() {
  if (has_new_alarm()) {
    tell_other_hosts();
    alarms_seen_ = world_.alarms.count();
    if (world_.alarms.first()) return failures_.cause();
    for (int rank = 0; rank < world_.config.size; ++rank) {
      if (world_.presence.liveness(rank) != Liveness::kRunning) has_departures_.store(true);
    }
  }
  return has_departures_.load() ? find_loss() : std::nullopt;
}

// The world is over when an operation under way needs a rank that is gone. Otherwise it goes on.
std::optional<Error> Membership::find_loss() {
  for (int rank = 0; rank < world_.config.size; ++rank) {
    if (world_.presence.liveness(rank) == Liveness::kRunning || may_still_answer(rank)) continue;
    if (!is_needed(rank)) continue;
    // Do not blame the first rank that left if it had done its part of this bucket.
    const std::optional<int> first = world_.alarms.first_departure();
    const bool is_first_to_blame = world_.alarms.first() || (first && is_needed(*first));
    return is_first_to_blame ? failures_.cause() : failures_.loss_of(rank);
  }
  return std::nullopt;
}

// A rank of another host may have taken part before it left. Its messages may come after the news.
bool Membership::may_still_answer(int departed) {
  const Presence& presence = world_.presence;
  if (presence.is_local(departed) || presence.liveness(departed) == Liveness::kDead) return false;
  std::int64_t& seen_ns = departures_ns_[static_cast<std::size_t>(departed)];
  if (seen_ns == 0) seen_ns = now_ns();
  return now_ns() - seen_ns < Nanoseconds(kLatency).count();
}

bool Membership::is_needed(int departed) const {
  return sets_.any_of([&](const ProcessSetContext& context) {
    if (context.is_active() && is_needed_by(context, departed)) return true;
    return context.set_rank_of(departed) >= 0 && is_needed_by_device(context, departed);
  });
}

// Work that is in a GPU's stream needs all ranks. One that shut down has waited for its part.
bool Membership::is_needed_by_device(const ProcessSetContext& context, int departed) const {
  if (world_.presence.liveness(departed) != Liveness::kFailed) return false;
  return context.backend != nullptr && context.backend->watch();
}

// A rank that shut down may have done its part of the operations here. Only operations that still
// need it are over. A rank that died ends everything.
bool Membership::is_needed_by(const ProcessSetContext& context, int departed) const {
  if (world_.presence.liveness(departed) == Liveness::kDead) return true;
  if (context.set_rank_of(departed) < 0) return false;
  const auto at = std::ranges::find(context.local, departed);
  // On another host: its data for the bucket may be on its way. If not, the link will fail.
  if (at == context.local.end() && context.is_running) return false;
  const PeerWait done{.rank = static_cast<int>(at - context.local.begin()),
                      .counter = Counter::kFinished,
                      .target = static_cast<std::uint32_t>(context.backend->end_block())};
  if (context.is_running) return !context.peers.reached(done);
  return !context.negotiation.has_ready() && !context.negotiation.has_bucket(context.cursor);
}

// The news with the reason may still be arriving, so this waits for it. If bytes were altered, no
// news will explain that.
void Membership::lose(const ProcessSetContext& context, const LinkLost& lost) {
  const int rank = context.members[static_cast<std::size_t>(lost.rank())];
  const Presence& presence = world_.presence;
  const std::int64_t deadline_ns = now_ns() + (lost.is_altered() ? 0 : kNewsPatience.count());
  while (now_ns() < deadline_ns && !world_.alarms.first() &&
         presence.liveness(rank) == Liveness::kRunning && !role_.is_closed()) {
    std::this_thread::sleep_for(kNewsInterval);
  }
  const bool has_failed = presence.liveness(rank) == Liveness::kFailed;
  if (world_.alarms.first() || (has_failed && world_.alarms.first_departure()))
    throw failures_.cause();
  if (presence.liveness(rank) != Liveness::kRunning && !lost.is_altered())
    throw failures_.loss_of(rank);
  throw failures_.raise_link_loss(rank, lost.reason());
}

}  // namespace hvd
