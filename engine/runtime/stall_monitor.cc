#include "runtime/stall_monitor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/text.h"
#include "runtime/submission.h"

namespace hvd {

namespace {

constexpr std::size_t kMostTitles = 6;
constexpr double kMostLookInterval = 1.0;
constexpr double kSilence_s = 0.35;  // several slices of a wait

double seconds(std::int64_t duration_ns) { return static_cast<double>(duration_ns) / 1e9; }

// "60.1 s": whole tenths that have passed.
std::string age_text(double age_s) {
  const auto tenths = static_cast<std::int64_t>(age_s * 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

// "allreduce 'x' and 7 more (allreduce 'y', ...)".
std::string titles_text(const std::vector<std::string>& titles) {
  std::string text = titles.front();
  if (titles.size() == 1) return text;
  text += " and " + std::to_string(titles.size() - 1) + " more (";
  for (std::size_t i = 1; i < std::min(titles.size(), kMostTitles); ++i) {
    text += (i == 1 ? "" : ", ") + titles[i];
  }
  return text + (titles.size() > kMostTitles ? ", ...)" : ")");
}

// Ranks near the fault can see it, and report it first.
bool is_due_from_afar(double age_s, double limit_s) { return age_s > 1.25 * limit_s + kSilence_s; }

bool is_blocked(const ProcessSetContext& context) {
  return context.is_running && context.blocked_on != PeerWait{};
}

// A rank that has joined waits until the others have no more data. So only the time since the last
// bucket counts.
double age_of(const ProcessSetContext& context, const Entry& entry, std::int64_t now) {
  std::int64_t since = entry.submitted_ns;
  if (entry.request().kind == Kind::kJoin) since = std::max(since, context.bucket_done_ns);
  return seconds(now - since);
}

}  // namespace

StallMonitor::StallMonitor(const CommonParts& common, Report report)
    : CommonParts(common), report_(std::move(report)) {}

void StallMonitor::check(std::int64_t now) {
  if (!world_.config.stall_check) return;
  const std::lock_guard guard(lock_.mutex);
  sets_.for_each([&](ProcessSetContext& context) {
    if (is_blocked(context) && !is_behind_another_set(context)) check_bucket(context, now);
    check_entries(context, now);
  });
}

// The bucket whose turn it is may wait for a rank. Its own check names that rank.
bool StallMonitor::is_behind_another_set(const ProcessSetContext& context) const {
  if (!context.blocked_on.is_for_turn || context.awaits_number()) return false;
  return sets_.any_of([](const ProcessSetContext& other) {
    return is_blocked(other) && (!other.blocked_on.is_for_turn || other.awaits_number());
  });
}

// The rank that the bucket waits for; -1 where others know it. A number may be held up by any
// leader: a leaf is named by the host above, and another one by the hosts below, which ask it
// (see check_entries).
int StallMonitor::awaited(const ProcessSetContext& context) const {
  if (!context.awaits_number()) return context.awaited(context.blocked_on);
  return context.relay == nullptr ? -1 : context.world_rank(context.relay->late_leaf());
}

void StallMonitor::check_bucket(ProcessSetContext& context, std::int64_t now) {
  StallState& state = context.stall;
  if (std::exchange(state.blocked_since_ns, context.blocked_since_ns) != context.blocked_since_ns) {
    state.is_reported = false;
    state.watched_rank = -1;
  }
  const double age_s = seconds(now - context.blocked_since_ns);
  const double limit_s = world_.config.stall_check_time_s;
  if (age_s < limit_s || !may_be_to_blame(context, now, limit_s)) return;
  const int rank = awaited(context);
  if (rank < 0) return;
  const std::string peer = world_.peer_name(rank);
  const std::string what =
      context.entries.empty() ? "a collective" : context.title_of(*context.entries.front());
  const bool is_own = context.blocked_on.is_polled && !context.awaits_number();
  const std::string text = (is_own ? "the data plane on " + peer : peer) + " has not moved for " +
                           age_text(age_s) + " in the middle of " + what;
  if (!std::exchange(state.is_reported, true)) {
    counters_.stalls.add(1);
    report_(text, {rank});
  }
  if (must_end(age_s) && may_be_to_blame(context, now, world_.config.stall_shutdown_time_s))
    end_world(text, {rank}, "");
}

bool StallMonitor::must_end(double age_s) const {
  const double limit_s = world_.config.stall_shutdown_time_s;
  return limit_s > 0 && age_s >= limit_s;
}

// This rank waits for a rank that may itself wait for another rank. Ranks of this host can be
// checked.
bool StallMonitor::may_be_to_blame(ProcessSetContext& context, std::int64_t now, double limit_s) {
  if (!world_.spans_hosts()) return true;
  if (context.blocked_on.rank < 0)
    return is_due_from_afar(seconds(now - context.blocked_since_ns), limit_s);
  return is_silent(context, context.awaited(context.blocked_on), now);
}

// A rank of this host that has something under way beats now and then while it waits. If it does
// not beat, it has stopped or runs something else.
bool StallMonitor::is_silent(ProcessSetContext& context, int rank, std::int64_t now) {
  StallState& state = context.stall;
  const std::uint32_t beats = world_.presence.beats(rank);
  if (state.watched_rank != rank || state.beats_seen != beats) {
    state.watched_rank = rank;
    state.beats_seen = beats;
    state.beat_ns = now;
  }
  return seconds(now - state.beat_ns) > kSilence_s;
}

void StallMonitor::check_entries(ProcessSetContext& context, std::int64_t now) {
  const double interval_s = std::min(kMostLookInterval, world_.config.stall_check_time_s / 2);
  const bool is_look = seconds(now - context.stall.looked_ns) >= interval_s;
  for (Entry* entry : context.tensors.in_flight()) check_entry(context, *entry, now, is_look);
  if (!is_look) return;
  context.stall.looked_ns = now;
  if (!context.stall.log.is_empty()) end_look(context);
}

void StallMonitor::end_look(ProcessSetContext& context) {
  std::map<StallLog::Ranks, StallLog::Stall> over;
  for (const auto& [missing, stall] : context.stall.log.end_look(over))
    report(context, missing, stall);
  for (const auto& [missing, stall] : over) {
    if (!is_reporter(context, missing)) continue;
    log(world_.config.log, LogLevel::kWarning,
        stall.titles.front() + " does not wait any more for " + world_.peer_names(missing));
  }
}

void StallMonitor::check_entry(ProcessSetContext& context, Entry& entry, std::int64_t now,
                               bool is_look) {
  const EngineConfig& config = world_.config;
  const double age_s = age_of(context, entry, now);
  const bool must_end = this->must_end(age_s);
  // Report submitted ranks to the parent at half the warning time, so that its warning is exact.
  if (context.relay != nullptr && age_s >= config.stall_check_time_s / 2 &&
      !std::exchange(entry.has_told_arrivals, true)) {
    context.relay->report_waiting(entry.ref.slot, entry.key);
  }
  if (age_s < config.stall_check_time_s || (!is_look && !must_end)) return;
  std::vector<int> missing;
  try {
    missing = missing_at(context, entry);
  } catch (const Error& error) {
    world_.alarms.raise({.code = error.code(),
                         .rank = config.rank,
                         .text = error.what(),
                         .ranks = error.subject().ranks});
    return;
  }
  if (missing.empty()) return check_leader(context, entry, now);
  const bool is_far =
      !std::ranges::all_of(missing, [this](int rank) { return world_.presence.is_local(rank); });
  const double limit_s = must_end ? config.stall_shutdown_time_s : config.stall_check_time_s;
  if (is_far && !is_due_from_afar(age_s, limit_s)) return;
  if (!std::exchange(entry.stall_reported, true)) {
    counters_.stalls.add(1);
    recorder_.record(context.event(EventKind::kStall, now, entry.label,
                                   static_cast<std::uint64_t>(age_s * 1e9)));
  }
  const std::string title = context.title_of(entry);
  if (is_look) context.stall.log.note(missing, title, age_s);
  if (!must_end) return;
  if (!is_look && context.stall.log.is_empty())
    report(context, missing, {.titles = {title}, .longest_s = age_s});
  end_world(text_of(title, missing, age_s), missing, title);
}

// All ranks of this host have submitted. But the leader, which receives decisions of other hosts,
// may be stuck.
void StallMonitor::check_leader(ProcessSetContext& context, Entry& entry, std::int64_t now) {
  const int leader = context.local.front();
  if (!context.spans_hosts() || context.is_leader() || !is_silent(context, leader, now)) return;
  const double age_s = age_of(context, entry, now);
  const std::string title = context.title_of(entry);
  const std::string text = title + " waits for other hosts, but " + world_.peer_name(leader) +
                           " has not moved for " + age_text(age_s) +
                           " and speaks to them for this host";
  if (!std::exchange(entry.stall_reported, true)) report_(text, {leader});
  if (must_end(age_s)) end_world(text, {leader}, title);
}

void StallMonitor::end_world(const std::string& text, const std::vector<int>& ranks,
                             const std::string& operation) {
  world_.alarms.raise({.code = ErrorCode::kTimeout,
                       .rank = ranks.front(),
                       .text = text,
                       .ranks = ranks,
                       .operation = operation});
  doorbells_.wake_everyone();
}

// World ranks that have not submitted, as far as this host knows.
std::vector<int> StallMonitor::missing_at(ProcessSetContext& context, Entry& entry) {
  std::vector<int> missing;
  {
    const SharedLock lock = context.negotiation.lock();
    missing = context.negotiation.missing_ranks(entry.ref);
  }
  if (missing.empty() && context.relay != nullptr) {
    context.relay->report_waiting(entry.ref.slot, entry.key);
    missing = context.relay->lacking(entry.key);
  }
  for (int& rank : missing) rank = context.members[static_cast<std::size_t>(rank)];
  return missing;
}

// One rank of a host reports: the lowest one that has submitted.
bool StallMonitor::is_reporter(const ProcessSetContext& context,
                               const std::vector<int>& missing) const {
  const auto reporter = std::ranges::find_if(
      context.local, [&](int rank) { return std::ranges::find(missing, rank) == missing.end(); });
  return reporter != context.local.end() && *reporter == world_.config.rank;
}

std::string StallMonitor::text_of(const std::string& what, const std::vector<int>& missing,
                                  double age_s) const {
  return what + " waits for ranks that did not submit it for " + age_text(age_s) +
         ". Missing ranks: " + list(missing) + " (" + world_.peer_names(missing) +
         "). They may run other operations, be slower or have ended their loop.";
}

void StallMonitor::report(const ProcessSetContext& context, const std::vector<int>& missing,
                          const StallLog::Stall& stall) {
  if (!is_reporter(context, missing)) return;
  std::vector<int> ready;
  std::ranges::set_difference(context.members, missing, std::back_inserter(ready));
  report_(text_of(titles_text(stall.titles), missing, stall.longest_s) +
              " Ready ranks: " + list(ready) + ".",
          missing);
}

}  // namespace hvd
