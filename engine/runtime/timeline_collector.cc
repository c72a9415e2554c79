#include "runtime/timeline_collector.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/error.h"

namespace hvd {

namespace {

// The most unread bytes. More are dropped.
constexpr std::size_t kMostInboxBytes = 64U << 20;
constexpr std::size_t kMostWaitingEvents = 1U << 20;
constexpr std::size_t kMostKinds = 1U << 16;
// An estimate that differs from the last by less than this is ignored.
constexpr std::int64_t kNewsNs = 10'000;

}  // namespace

TimelineCollector::TimelineCollector(TimelineConfig config, std::vector<TraceSource> own,
                                     std::vector<Host> others)
    : timeline_(std::move(config)), own_(std::move(own)) {
  for (Host& host : others) {
    const int leader = host.ranks.front();
    remotes_[leader].name = std::move(host.name);
    remotes_[leader].ranks = std::move(host.ranks);
    running_.insert(leader);
  }
}

double TimelineCollector::collect() {
  double fill = 0;
  for (TraceSource& source : own_) {
    const TraceChunk& chunk = source.next();
    for (auto& [leader, remote] : remotes_) compare(remote, false, chunk);
    write(chunk, 0);
    fill = std::max(fill, static_cast<double>(chunk.events.size()) / source.capacity());
  }
  std::vector<std::pair<int, TraceChunk>> inbox;
  {
    const std::lock_guard guard(mutex_);
    inbox.swap(inbox_);
    inbox_bytes_ = 0;
  }
  for (auto& [leader, chunk] : inbox) take_in(leader, std::move(chunk));
  for (auto& [leader, remote] : remotes_) use_estimate(remote);
  timeline_.flush();
  return fill;
}

void TimelineCollector::take_in(int leader, TraceChunk chunk) {
  Remote& remote = remotes_[leader];
  compare(remote, true, chunk);
  if (remote.used) return write(chunk, -remote.used->ahead_ns);
  remote.waiting_events += chunk.events.size();
  if (remote.waiting_events < kMostWaitingEvents) remote.waiting.push_back(std::move(chunk));
}

void TimelineCollector::compare(Remote& remote, bool is_other, const TraceChunk& chunk) {
  if (kinds_.size() > kMostKinds) kinds_.clear();
  for (const auto& [id, label] : chunk.labels) kinds_[{chunk.rank, id}] = label.kind;
  for (const Event& event : chunk.events) {
    int kind = -1;
    if (event.kind == EventKind::kFused) {
      const auto found = kinds_.find({chunk.rank, event.subject});
      if (found != kinds_.end()) kind = found->second;
    }
    remote.clocks.add(is_other, chunk.rank, event, kind);
  }
}

void TimelineCollector::use_estimate(Remote& remote) {
  const auto estimate = remote.clocks.estimate();
  if (!estimate) return;
  const bool is_news = !remote.used ||
                       std::abs(remote.used->ahead_ns - estimate->ahead_ns) > kNewsNs ||
                       std::abs(remote.used->error_ns - estimate->error_ns) > kNewsNs;
  remote.used = estimate;
  if (!is_news) return;
  timeline_.note_clock(remote.name, -estimate->ahead_ns, estimate->error_ns, now_ns());
  for (const TraceChunk& chunk : std::exchange(remote.waiting, {})) {
    write(chunk, -estimate->ahead_ns);
  }
}

void TimelineCollector::write(const TraceChunk& chunk, std::int64_t shift_ns) {
  if (chunk.lost != 0) timeline_.note_loss(chunk.rank, chunk.lost, now_ns());
  for (const auto& [id, label] : chunk.labels) timeline_.add_label(chunk.rank, id, label);
  for (const Event& event : chunk.events) timeline_.add(chunk.rank, event, shift_ns);
}

void TimelineCollector::receive(int leader, std::string_view bytes) {
  const auto remote = remotes_.find(leader);
  if (remote == remotes_.end()) return;
  if (bytes.empty()) {
    const std::lock_guard guard(mutex_);
    running_.erase(leader);
    return;
  }
  TraceChunk chunk = read_chunk(bytes, remote->second.ranks);
  const std::lock_guard guard(mutex_);
  if (inbox_bytes_ >= kMostInboxBytes) return;
  inbox_bytes_ += bytes.size();
  inbox_.emplace_back(leader, std::move(chunk));
}

bool TimelineCollector::have_all_ended() {
  const std::lock_guard guard(mutex_);
  return running_.empty();
}

}  // namespace hvd
