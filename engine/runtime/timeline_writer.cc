#include "runtime/timeline_writer.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/error.h"

namespace hvd {

namespace {

// The sleep of the tracer thread while a timeline is written, and how full a recorder may become
// meanwhile. Long sleeps are best: each wake-up disturbs the program.
constexpr Nanoseconds kShortNap = std::chrono::milliseconds(2);
constexpr Nanoseconds kLongNap = std::chrono::milliseconds(100);
constexpr double kUsualFill = 0.25;
constexpr Nanoseconds kSenderNap = std::chrono::milliseconds(50);
// The time for other ranks to reach the end of a bucket that this rank has ended.
constexpr Nanoseconds kLastEvents = std::chrono::milliseconds(50);
constexpr Nanoseconds kLastChunks = std::chrono::milliseconds(500);

Nanoseconds nap_after(Nanoseconds last, double fill) {
  const double factor = kUsualFill / std::max(fill, 1e-6);
  const auto wanted = static_cast<double>(last.count()) * factor;
  const auto most = static_cast<double>(kLongNap.count());
  return std::max(kShortNap, Nanoseconds(static_cast<std::int64_t>(std::min(wanted, most))));
}

}  // namespace

TimelineWriter::TimelineWriter(const TraceConfig& config, const TracePlace& place,
                               const TraceMemory& memory)
    : config_(config), place_(place), memory_(memory) {}

void TimelineWriter::connect(std::vector<std::vector<int>> other_hosts, SendNote send) {
  other_hosts_ = std::move(other_hosts);
  send_ = std::move(send);
}

void TimelineWriter::start(const std::string& path, bool mark_cycles, bool from_now) {
  const std::lock_guard guard(mutex_);
  finish();
  try {
    begin(path, mark_cycles, from_now);
    is_active_.store(true);
  } catch (const Error& error) {
    log(place_.log, LogLevel::kError, std::string("there will be no timeline: ") + error.what());
  }
}

void TimelineWriter::stop() {
  const std::lock_guard guard(mutex_);
  finish();
}

void TimelineWriter::begin(const std::string& path, bool mark_cycles, bool from_now) {
  std::vector<TimelineCollector::Host> others;
  for (const auto& ranks : other_hosts_) others.push_back({ranks, place_.name_of(ranks.front())});
  timeline_ =
      std::make_shared<TimelineCollector>(TimelineConfig{.path = path,
                                                         .max_bytes = config_.timeline_max_bytes,
                                                         .mark_cycles = mark_cycles,
                                                         .data_plane = config_.data_plane,
                                                         .rank_names = place_.rank_names},
                                          sources(from_now), std::move(others));
  set_receiver(timeline_);
  tell_others(NoteKind::kBeginTrace, from_now ? 1 : 0);
}

void TimelineWriter::set_receiver(std::shared_ptr<TimelineCollector> receiver) {
  const std::lock_guard guard(receiver_mutex_);
  receiver_ = std::move(receiver);
}

// The recorders of this host. For a new world they are read from the beginning: other ranks may
// have recorded events already.
std::vector<TraceSource> TimelineWriter::sources(bool from_now) const {
  std::vector<TraceSource> sources;
  for (const int rank : place_.local) {
    RecorderView view(memory_(rank));
    const std::uint64_t first = from_now ? view.end() : 0;
    sources.emplace_back(std::move(view), rank, first);
  }
  return sources;
}

// True when all leaders can be told.
bool TimelineWriter::tell_others(NoteKind kind, int value) const {
  bool could_all = true;
  for (const auto& ranks : other_hosts_) {
    could_all = send_(ranks.front(), kind, value, {}) && could_all;
  }
  return could_all;
}

void TimelineWriter::receive(int leader, const std::string& bytes) {
  std::shared_ptr<TimelineCollector> receiver;
  {
    const std::lock_guard guard(receiver_mutex_);
    receiver = receiver_;
  }
  if (receiver != nullptr) receiver->receive(leader, bytes);
}

Nanoseconds TimelineWriter::work(Nanoseconds last_nap) {
  const std::lock_guard guard(mutex_);
  if (sent_) send_news();
  if (timeline_ == nullptr) return kSenderNap;
  try {
    const double fill = timeline_->collect();
    if (!timeline_->is_full()) return nap_after(std::max(last_nap, kShortNap), fill);
    log(place_.log, LogLevel::kWarning,
        "the timeline has reached its largest size and ends here; see HOROVOD_TIMELINE_MAX_MB");
  } catch (const Error& error) {
    log(place_.log, LogLevel::kError, std::string("the timeline ends here: ") + error.what());
  }
  tell_others(NoteKind::kEndTrace, 0);
  drop();
  return kLongNap;
}

void TimelineWriter::finish() {
  if (timeline_ == nullptr) return;
  const bool can_be_whole = tell_others(NoteKind::kEndTrace, 0);
  const std::int64_t begin_ns = now_ns();
  try {
    for (;;) {
      const bool have_ended = timeline_->have_all_ended();  // before: their last chunks are here
      timeline_->collect();
      const Nanoseconds patience = can_be_whole && !have_ended ? kLastChunks : kLastEvents;
      const bool is_whole = have_ended && !timeline_->has_open_bucket();
      if (is_whole || now_ns() - begin_ns > patience.count()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const Error& error) {
    log(place_.log, LogLevel::kError, std::string("the timeline ends here: ") + error.what());
  }
  drop();
}

void TimelineWriter::drop() {
  set_receiver(nullptr);
  timeline_.reset();
  is_active_.store(false);
}

void TimelineWriter::send_news() {
  for (TraceSource& source : *sent_) {
    const TraceChunk& chunk = source.next();
    if (chunk.events.empty() && chunk.lost == 0) continue;
    send_(0, NoteKind::kTrace, place_.rank, write_chunk(chunk));
  }
}

void TimelineWriter::begin_sending(bool from_now) {
  const std::lock_guard guard(mutex_);
  sent_ = sources(from_now);
  is_active_.store(true);
}

void TimelineWriter::end_sending() {
  const std::lock_guard guard(mutex_);
  if (!sent_) return;
  send_news();
  sent_.reset();
  send_(0, NoteKind::kTrace, place_.rank, {});
  is_active_.store(false);
}

}  // namespace hvd
