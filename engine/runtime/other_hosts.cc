// A world that spans hosts: what its ranks tell each other beside the data, and how a thread waits
// for sockets and for the ranks of its own host at once.
//
// Such a thread sleeps in poll(2) on the sockets that it needs and on its bell, an eventfd that
// ranks of its host write to while it polls. Only the holder of the progress role touches a data or
// control socket. A leader looks at its links only while it has something in flight: a tensor that
// it has not submitted cannot be complete.
#include <poll.h>

#include <algorithm>
#include <ctime>

#include "runtime/engine.h"

namespace hvd {

namespace {

// How long news of a rank that left may take, once its connection is closed.
constexpr Nanoseconds kNewsPatience = std::chrono::seconds(1);
constexpr std::chrono::duration<double> kSilence{0.35};  // several slices of a wait
constexpr std::size_t kBriefBytes = 64 * 1024;
constexpr Nanoseconds kNewsInterval = std::chrono::milliseconds(5);

}  // namespace

bool Engine::leads_host() const {
  return std::ranges::any_of(hosts_,
                             [this](const auto& host) { return host.front() == config_.rank; }) ||
         (hosts_.empty() && config_.rank == 0);
}

void Engine::start_watching(std::vector<WatchedProcess> processes,
                            const std::vector<LeaderLink>& links) {
  std::vector<int> descriptors;
  if (!links.empty()) {
    news_ = std::make_unique<News>(links, hosts_, config_.rank);
    descriptors = news_->descriptors();
    connect_tracer();
  }
  watcher_ = std::make_unique<Watcher>(
      std::move(processes), [this](int rank) { on_peer_death(rank); }, std::move(descriptors),
      [this](std::size_t index) { return hear_link(index); });
}

// For the tracer of a leader: how it reaches those of other hosts.
void Engine::connect_tracer() {
  std::map<int, int> leaders;
  for (const std::vector<int>& host : hosts_) {
    for (const int rank : host) leaders[rank] = host.front();
  }
  tracer_->connect(std::move(leaders),
                   [this](int leader, NoteKind kind, int rank, const std::string& text) {
                     return news_->send_note(leader, kind, rank, text);
                   });
}

// Any thread. What this host's ranks did, and why the world ends.
void Engine::tell_other_hosts() {
  if (news_ == nullptr) return;
  // Causes first: a rank that failed did so because of an alarm, which may have come from elsewhere
  // and not be known everywhere, or of another rank.
  if (const auto alarm = alarms_.first()) news_->tell_alarm(*alarm);
  for (const bool has_failed : {false, true}) {
    for (int rank = 0; rank < config_.size; ++rank) {
      const Liveness liveness = presence_.liveness(rank);
      if (!presence_.is_local(rank) || liveness == Liveness::kRunning) continue;
      if ((liveness == Liveness::kFailed) == has_failed) news_->tell_departure(rank, liveness);
    }
  }
}

// By the watcher's thread; false when the link broke.
bool Engine::hear_link(std::size_t index) {
  std::string loss;
  const int leader = news_->leader(index);
  try {
    if (news_->hear(index, [&](const NewsItem& item) { hear(leader, item); }, loss)) return true;
    lose_host(leader, loss);
  } catch (const BadMessage& bad) {
    alarm_about(bad, leader);
    tell_other_hosts();
    wake_everyone();
  }
  return false;
}

void Engine::hear(int leader, const NewsItem& item) {
  if (item.note != NoteKind::kNone) {
    tracer_->hear(leader, item.note, item.alarm.rank, item.alarm.text);
    return;
  }
  if (item.liveness == Liveness::kRunning) {
    alarms_.raise(item.alarm);
  } else {
    presence_.set_liveness(item.alarm.rank, item.liveness);
    if (item.liveness == Liveness::kLeft) alarms_.note_departure(item.alarm.rank);
    alarms_.touch();
  }
  wake_everyone();
}

// A leader that shuts down says so first; what closes without a word has died, or the network has.
void Engine::lose_host(int leader, const std::string& reason) {
  if (presence_.liveness(leader) != Liveness::kRunning) return;
  recorder_.record_now({.kind = EventKind::kAlarm, .subject = static_cast<std::uint32_t>(leader)});
  // Why comes first: whoever finds the leader dead asks for it.
  alarms_.raise({.code = ErrorCode::kPeerLost,
                 .rank = leader,
                 .text = "lost the connection to " + peer_name(leader) + ": " + reason +
                         "; no further operation can complete",
                 .ranks = {leader}});
  presence_.set_liveness(leader, Liveness::kDead);
  wake_everyone();
}

// Any thread: what `rank` has sent must not be used, so nothing that it sends can be, and the world
// is over. All ranks hear it as an alarm.
Error Engine::alarm_about(const BadMessage& bad, int rank) {
  const std::string sender = rank < 0 ? "another rank" : peer_name(rank);
  Alarm alarm{.code = bad.code(),
              .rank = rank < 0 ? config_.rank : rank,
              .text = bad.text_from(sender) + "; no further operation can complete"};
  if (rank >= 0) alarm.ranks = {rank};
  alarms_.raise(alarm);
  return error_of(alarm);
}

void Engine::refuse(const BadMessage& bad, int rank) { throw alarm_about(bad, rank); }

// In the progress role: a connection is needed and broken. Why is news that may just be arriving,
// unless its bytes were altered, which nobody has news of.
void Engine::lose(const ProcessSetContext& context, const LinkLost& lost) {
  const int rank = context.members[static_cast<std::size_t>(lost.rank())];
  const std::int64_t deadline_ns = now_ns() + (lost.is_altered() ? 0 : kNewsPatience.count());
  while (now_ns() < deadline_ns && !alarms_.first() &&
         presence_.liveness(rank) == Liveness::kRunning && !stopping_.load()) {
    std::this_thread::sleep_for(kNewsInterval);
  }
  const bool has_failed = presence_.liveness(rank) == Liveness::kFailed;
  if (alarms_.first() || (has_failed && alarms_.first_departure())) throw cause();
  if (presence_.liveness(rank) != Liveness::kRunning && !lost.is_altered()) {
    throw loss_of(rank);
  }
  const Alarm alarm{.code = ErrorCode::kPeerLost,
                    .rank = rank,
                    .text = "lost the connection to " + peer_name(rank) + ": " + lost.reason() +
                            "; no further operation can complete",
                    .ranks = {rank}};
  alarms_.raise(alarm);
  throw error_of(alarm);
}

// In the progress role, when the world is over here: what others still need of this rank will not
// come, and a closed connection tells them.
void Engine::disconnect() {
  for_each_context([](ProcessSetContext& context) { context.disconnect(); });
}

bool Engine::has_active_context() const {
  bool found = false;
  for_each_context([&](const ProcessSetContext& context) { found = found || context.is_active(); });
  return found;
}

// A rank of this host that has something under way beats now and then while it waits itself. One
// that does not has stopped, or runs something else.
bool Engine::is_silent(ProcessSetContext& context, int rank) const {
  const std::uint32_t beats = presence_.beats(rank);
  const std::int64_t now = now_ns();
  if (context.watched_rank != rank || context.beats_seen != beats) {
    context.watched_rank = rank;
    context.beats_seen = beats;
    context.beat_ns = now;
  }
  return static_cast<double>(now - context.beat_ns) / 1e9 > kSilence.count();
}

bool Engine::is_due_from_afar(double age_s, double limit_s) const {
  return age_s > 1.25 * limit_s + kSilence.count();
}

// A rank that is waited for may itself wait, for the one to blame. On this host that can be seen.
// Of another host it cannot, but those who can see it speak first.
bool Engine::may_be_to_blame(ProcessSetContext& context, double age_s, double limit_s) const {
  if (!spans_hosts()) return true;
  if (context.blocked_on.rank < 0) return is_due_from_afar(age_s, limit_s);
  return is_silent(context, context.awaited(context.blocked_on));
}

// What is under way is small, so that an answer of another host is worth looking out for, or
// nothing is, and a decision is.
bool Engine::is_brief() const {
  bool is_brief = true;
  for_each_context([&](const ProcessSetContext& context) {
    is_brief = is_brief && !(context.is_running && context.bucket_bytes > kBriefBytes);
  });
  return is_brief;
}

// Rings those ranks of this host without which this one does not get on.
void Engine::ask_for_help() const {
  for_each_context([&](const ProcessSetContext& context) {
    if (!context.is_active()) return;
    if (context.is_running && context.blocked_on.rank >= 0)
      presence_.ring(context.awaited(context.blocked_on));
    // The leader alone hears of decisions and tells of buckets that were cut here.
    if (context.spans_hosts() && !context.is_leader()) presence_.ring(context.local.front());
  });
}

std::vector<pollfd> Engine::polls() const {
  std::vector<pollfd> polls{
      {.fd = presence_.doorbell_descriptor(), .events = POLLIN, .revents = 0}};
  for_each_context([&](const ProcessSetContext& context) {
    if (!context.is_active()) return;
    if (context.relay != nullptr) context.relay->add_polls(polls);
    if (context.is_running && context.backend != nullptr) context.backend->add_polls(polls);
  });
  return polls;
}

// Sleeps until a socket has something, a rank of this host rings, or one of its counters moves.
void Engine::wait_for_hosts(std::int64_t deadline_ns, bool is_helper) {
  const auto wanted = [&] { return can_progress(is_helper || may_form_in_background()); };
  std::vector<std::pair<ProcessSetContext*, PeerWait>> waits;
  for_each_context([&](ProcessSetContext& context) {
    if (context.is_running && context.blocked_on.rank >= 0)
      waits.emplace_back(&context, context.blocked_on);
    if (context.is_running && context.blocked_on.is_polled) {
      deadline_ns = std::min(deadline_ns, context.look_at_ns);
    }
  });
  ask_for_help();
  presence_.beat();
  std::vector<pollfd> polls = this->polls();
  presence_.begin_polling();
  for (const auto& [context, wait] : waits) context->peers.listen(wait);
  say_asleep(is_helper);
  if (!must_look_up(is_helper) && !wanted()) {
    Nanoseconds limit = std::clamp(Nanoseconds(deadline_ns - now_ns()), Nanoseconds(0),
                                   Nanoseconds(std::chrono::milliseconds(100)));
    if (!is_helper && ready_since_ns_ != 0) limit = std::min(limit, lingering());
    const timespec timeout{.tv_sec = 0, .tv_nsec = limit.count()};
    ppoll(polls.data(), polls.size(), &timeout, nullptr);
  }
  sleeping_on_.store(0);
  presence_.set_wait_state(WaitState::kAwake);
  for (const auto& [context, wait] : waits) context->peers.unlisten(wait);
  presence_.end_polling();
}

}  // namespace hvd
