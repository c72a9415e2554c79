// Tensors that some ranks never submit, buckets in which one does not move: after the stall time
// one message for each change says who is missing and what they do instead; after the shutdown time
// the world ends.
#include <algorithm>
#include <utility>

#include "core/text.h"
#include "runtime/engine.h"

namespace hvd {

namespace {

constexpr std::size_t kMostTitles = 6;
constexpr double kMostLookInterval = 1.0;

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

}  // namespace

void Engine::check_stalls() {
  if (!config_.stall_check || is_over_.load()) return;
  const std::int64_t now = now_ns();
  const std::lock_guard guard(mutex_);
  for_each_context([&](ProcessSetContext& context) {
    if (context.is_running && context.blocked_on != PeerWait{}) {
      check_stalled_bucket(context, now - context.blocked_since_ns);
    }
    check_stalled_entries(context, now);
  });
}

void Engine::check_stalled_entries(ProcessSetContext& context, std::int64_t now) {
  const double interval_s = std::min(kMostLookInterval, config_.stall_check_time_s / 2);
  const bool is_look = static_cast<double>(now - context.stalls_looked_ns) / 1e9 >= interval_s;
  for (Entry* entry : context.tensors.in_flight()) {
    std::int64_t since = entry->submitted_ns;
    // A rank that has joined waits as long as the others have data: only their silence counts.
    if (entry->request().kind == Kind::kJoin) since = std::max(since, context.bucket_done_ns);
    check_stalled_entry(context, *entry, now - since, is_look);
  }
  if (!is_look) return;
  context.stalls_looked_ns = now;
  if (context.stalls.is_empty()) return;
  std::map<StallLog::Ranks, StallLog::Stall> over;
  for (const auto& [missing, stall] : context.stalls.end_look(over))
    report(context, missing, stall);
  for (const auto& [missing, stall] : over) {
    if (!speaks_for(context, missing)) continue;
    log(config_.log, LogLevel::kWarning,
        stall.titles.front() + " does not wait any more for " + names_of(missing));
  }
}

void Engine::check_stalled_bucket(ProcessSetContext& context, std::int64_t age_ns) {
  const double age_s = static_cast<double>(age_ns) / 1e9;
  if (age_s < config_.stall_check_time_s) return;
  if (!may_be_to_blame(context, age_s, config_.stall_check_time_s)) return;
  const int rank = context.awaited(context.blocked_on);
  const std::string who =
      context.blocked_on.is_polled ? "the data plane on " + peer_name(rank) : peer_name(rank);
  const std::string what =
      context.entries.empty() ? "a collective" : title(context, *context.entries.front());
  const std::string text =
      who + " has not moved for " + seconds_text(age_s) + " in the middle of " + what;
  if (!std::exchange(context.blocked_reported, true)) {
    counters_.stalls.add(1);
    tracer_->report(text, {rank});
  }
  if (config_.stall_shutdown_time_s <= 0 || age_s < config_.stall_shutdown_time_s) return;
  if (!may_be_to_blame(context, age_s, config_.stall_shutdown_time_s)) return;
  alarms_.raise({.code = ErrorCode::kTimeout, .rank = rank, .text = text, .ranks = {rank}});
  wake_everyone();
}

// Half way to a warning the board above hears who of this host has submitted, so that its warning
// names those only who have not.
void Engine::tell_who_arrived(ProcessSetContext& context, Entry& entry) {
  if (std::exchange(entry.has_told_arrivals, true)) return;
  context.relay->report_waiting(entry.ref.slot, entry.key);
}

// All of this host are here: its leader hears what is decided, and tells the others.
void Engine::check_leader(ProcessSetContext& context, Entry& entry, double age_s, bool must_end) {
  const int leader = context.local.front();
  if (!context.spans_hosts() || context.is_leader() || !is_silent(context, leader)) return;
  const std::string title = this->title(context, entry);
  const std::string text = title + " waits for other hosts, but " + peer_name(leader) +
                           " has not moved for " + seconds_text(age_s) +
                           " and speaks to them for this host";
  if (!std::exchange(entry.stall_reported, true)) tracer_->report(text, {leader});
  if (!must_end) return;
  alarms_.raise({.code = ErrorCode::kTimeout,
                 .rank = leader,
                 .text = text,
                 .ranks = {leader},
                 .operation = title});
  wake_everyone();
}

void Engine::check_stalled_entry(ProcessSetContext& context, Entry& entry, std::int64_t age_ns,
                                 bool is_look) {
  const double age_s = static_cast<double>(age_ns) / 1e9;
  const bool must_end = config_.stall_shutdown_time_s > 0 && age_s >= config_.stall_shutdown_time_s;
  if (context.relay != nullptr && age_s >= config_.stall_check_time_s / 2)
    tell_who_arrived(context, entry);
  if (age_s < config_.stall_check_time_s || (!is_look && !must_end)) return;
  std::vector<int> missing;
  try {
    missing = missing_at(context, entry);
  } catch (const Error& error) {
    alarms_.raise({.code = error.code(),
                   .rank = config_.rank,
                   .text = error.what(),
                   .ranks = error.subject().ranks});
    return;
  }
  if (missing.empty()) return check_leader(context, entry, age_s, must_end);
  // Those who are nearer to the rank that holds all up speak first.
  const bool is_far =
      std::ranges::any_of(missing, [this](int rank) { return !presence_.is_local(rank); });
  const double limit_s = must_end ? config_.stall_shutdown_time_s : config_.stall_check_time_s;
  if (is_far && !is_due_from_afar(age_s, limit_s)) return;
  if (!std::exchange(entry.stall_reported, true)) {
    counters_.stalls.add(1);
    recorder_.record_now({.kind = EventKind::kStall,
                          .process_set = static_cast<std::uint16_t>(context.id),
                          .subject = entry.label,
                          .value = static_cast<std::uint64_t>(age_ns)});
  }
  const std::string title = this->title(context, entry);
  if (is_look) context.stalls.note(missing, title, age_s);
  if (!must_end) return;
  if (!is_look && context.stalls.is_empty()) {
    report(context, missing, {.titles = {title}, .longest_s = age_s});
  }
  const std::string text = stall_text(title, missing, age_s);
  alarms_.raise({.code = ErrorCode::kTimeout,
                 .rank = missing.front(),
                 .text = text,
                 .ranks = missing,
                 .operation = title});
  wake_everyone();
}

// World ranks that are awaited, as far as this host knows.
std::vector<int> Engine::missing_at(ProcessSetContext& context, Entry& entry) {
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

// One voice of this host is enough: the lowest rank that did submit.
bool Engine::speaks_for(const ProcessSetContext& context, const std::vector<int>& missing) const {
  const auto speaker = std::ranges::find_if(
      context.local, [&](int rank) { return std::ranges::find(missing, rank) == missing.end(); });
  return speaker != context.local.end() && *speaker == config_.rank;
}

std::string Engine::names_of(const std::vector<int>& ranks) const {
  std::string names;
  for (const int rank : ranks) names += (names.empty() ? "" : ", ") + peer_name(rank);
  return names;
}

std::string Engine::stall_text(const std::string& what, const std::vector<int>& missing,
                               double age_s) const {
  return what + " waits for ranks that did not submit it for " + seconds_text(age_s) +
         ". Missing ranks: " + list(missing) + " (" + names_of(missing) +
         "). They may run other operations, be slower or have ended their loop.";
}

void Engine::report(const ProcessSetContext& context, const std::vector<int>& missing,
                    const StallLog::Stall& stall) {
  if (!speaks_for(context, missing)) return;
  std::vector<int> ready;
  std::ranges::set_difference(context.members, missing, std::back_inserter(ready));
  tracer_->report(stall_text(titles_text(stall.titles), missing, stall.longest_s) +
                      " Ready ranks: " + list(ready) + ".",
                  missing);
}

}  // namespace hvd
