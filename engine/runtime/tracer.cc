#include "runtime/tracer.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "runtime/activity.h"
#include "runtime/quiet_thread.h"

namespace hvd {

namespace {

constexpr Nanoseconds kForever = std::chrono::hours(24);
constexpr Nanoseconds kTimelineInterval = std::chrono::milliseconds(50);
constexpr Nanoseconds kBusyInterval = std::chrono::milliseconds(2);
// For the other ranks to reach the end of a bucket that this one has left.
constexpr Nanoseconds kLastEvents = std::chrono::milliseconds(50);
constexpr std::size_t kMostStackBytes = 256 * 1024;
// Of a stall report.
constexpr std::size_t kMostDescribed = 4;
constexpr int kMostStackLines = 12;
constexpr Nanoseconds kAnswerPatience = std::chrono::seconds(1);
constexpr Nanoseconds kMutualAnswer = std::chrono::milliseconds(20);

}  // namespace

Tracer::Tracer(TraceConfig config, Place place, Memory memory)
    : config_(std::move(config)),
      place_(std::move(place)),
      memory_(std::move(memory)),
      recorder_(memory_(place_.rank), config_.events) {
  if (!config_.timeline_path.empty()) {
    start_timeline(config_.timeline_path, config_.timeline_mark_cycles);
  }
}

void Tracer::start() {
  if (recorder_.is_on()) scribe_ = quiet_thread([this] { run(); });
}

Tracer::~Tracer() { stop(); }

void Tracer::call_scribe() {
  SharedWord& calls = recorder_.header().calls;
  calls.fetch_add(1);
  futex_wake_all(calls);
}

void Tracer::want_file(const std::string& reason, const std::string& detail, int rank) {
  if (!recorder_.is_on() || config_.folder.empty()) return;
  {
    const std::lock_guard guard(mutex_);
    const auto is_same = [&](const Wish& wish) {
      return wish.reason == reason && wish.rank == rank;
    };
    if (std::ranges::any_of(wishes_, is_same)) return;
    wishes_.push_back({reason, detail, rank});
  }
  call_scribe();
}

std::string Tracer::write_file(const std::string& reason, const std::string& detail,
                               const std::string& path) {
  if (!recorder_.is_on()) {
    throw Error(ErrorCode::kInvalidArgument, "the flight recorder is switched off");
  }
  return file_of(recorder_, {reason, detail, place_.rank}, path, false);
}

void Tracer::run() {
  if (config_.stack_signal != 0) {
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, config_.stack_signal);
    pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  }
  RecorderHeader& header = recorder_.header();
  for (;;) {
    const std::uint32_t seen = header.calls.load();
    const bool is_last = stopping_.load();  // what was wanted before that is still to be done
    std::vector<Wish> wishes;
    std::vector<Report> reports;
    {
      const std::lock_guard guard(mutex_);
      wishes.swap(wishes_);
      reports.swap(reports_);
    }
    if (const std::uint32_t wanted = header.dumps_wanted.load(); wanted != dumps_done_) {
      dumps_done_ = wanted;
      wishes.push_back({"signal", "SIGUSR1", place_.rank});
    }
    for (const Wish& wish : wishes) carry_out(wish);
    answer();
    for (const Report& report : reports) log_report(report);
    const bool is_busy = has_timeline_.load() && drain();
    if (is_last) return;
    const Nanoseconds nap = is_busy                ? kBusyInterval
                            : has_timeline_.load() ? kTimelineInterval
                                                   : kForever;
    futex_wait(header.calls, seen, nap);
  }
}

void Tracer::carry_out(const Wish& wish) {
  try {
    const bool is_own = wish.rank == place_.rank;
    const std::string path =
        is_own ? file_of(recorder_, wish, {}, wish.reason == "signal")
               : file_of(RecorderView(memory_(wish.rank)), wish, {}, false);
    log(place_.log, LogLevel::kInfo, "the flight recorder's last events are in " + path);
  } catch (const std::exception& error) {
    log(place_.log, LogLevel::kInfo, std::string("no flight recorder file: ") + error.what());
  }
}

std::string Tracer::file_of(const RecorderView& recorder, const Wish& wish, const std::string& path,
                            bool with_stacks) {
  const std::lock_guard guard(files_mutex_);
  RecordingHead head{.rank = wish.rank,
                     .name = name_of(wish.rank),
                     .written_by = place_.rank,
                     .reason = wish.reason,
                     .detail = wish.detail,
                     .world = config_.world,
                     .stacks = {}};
  if (with_stacks) head.stacks = stacks();
  if (!path.empty()) {
    write_recording(recorder, head, path);
    return path;
  }
  if (config_.folder.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "there is no folder for recordings; give a path");
  }
  const std::string folder = prepare_folder(config_.folder, config_.is_chosen_folder, config_.job);
  std::string own = folder + "/rank-" + std::to_string(wish.rank) + "-pid-" +
                    std::to_string(getpid()) + "-" + wish.reason + kRecordingSuffix;
  write_recording(recorder, head, own);
  return own;
}

// On the scribe's thread.
std::string Tracer::stacks() {
  if (config_.stack_signal == 0 || ftruncate(config_.stack_fd, 0) != 0) return {};
  if (pthread_kill(pthread_self(), config_.stack_signal) != 0) return {};  // returns when handled
  std::string text(kMostStackBytes, '\0');
  const ssize_t count = pread(config_.stack_fd, text.data(), text.size(), 0);
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return text;
}

// Somebody asks what this rank is doing.
void Tracer::answer() {
  RecorderHeader& header = recorder_.header();
  const std::uint32_t questions = header.questions.load();
  if (questions == header.answers.load()) return;
  // Its end: the main thread comes last.
  const std::string all = stacks();
  const std::size_t most = RecorderHeader::kAnswerBytes - 1;
  copy_text(header.answer, all.size() > most ? all.substr(all.size() - most) : all);
  header.answers.store(questions);
  futex_wake_all(header.answers);
}

void Tracer::report(const std::string& text, const std::vector<int>& ranks) {
  if (!scribe_.joinable()) {
    log(place_.log, LogLevel::kWarning, text);
    return;
  }
  {
    const std::lock_guard guard(mutex_);
    reports_.push_back({text, ranks});
  }
  call_scribe();
}

void Tracer::log_report(const Report& report) {
  std::string text = report.text;
  for (std::size_t i = 0; i < std::min(report.ranks.size(), kMostDescribed); ++i) {
    const std::string lines = describe(report.ranks[i]);
    if (!lines.empty()) text.append("\n").append(lines);
  }
  log(place_.log, LogLevel::kWarning, text);
}

std::string Tracer::describe(int rank) {
  if (std::ranges::find(place_.local, rank) == place_.local.end()) return {};
  const RecorderView view(memory_(rank));
  std::string text = "  ";
  text.append(name_of(rank)).append(" ").append(last_operations(view, now_ns()));
  const auto pid = place_.pids.find(rank);
  if (pid != place_.pids.end() && is_stopped(pid->second)) return text + "; its process is stopped";
  const std::string stack = main_stack(ask(view.header()), "    ", kMostStackLines);
  if (stack.empty()) return text;
  text.append("; its main thread, the last call first:\n").append(stack);
  text.pop_back();
  return text;
}

// What the scribe of another rank says about Python's stacks; nothing, if it does not answer soon.
std::string Tracer::ask(RecorderHeader& header) {
  if (stopping_.load() || header.capacity.load() == 0) return {};
  const std::uint32_t question = header.questions.fetch_add(1) + 1;
  header.calls.fetch_add(1);
  futex_wake_all(header.calls);
  const std::int64_t deadline_ns = now_ns() + kAnswerPatience.count();
  for (;;) {
    const std::uint32_t answered = header.answers.load();
    if (static_cast<std::int32_t>(answered - question) >= 0) return header.answer;
    const Nanoseconds left(deadline_ns - now_ns());
    if (left.count() <= 0) return {};
    futex_wait(header.answers, answered, std::min(left, kMutualAnswer));
    answer();  // the other one may be asking, too
  }
}

std::string Tracer::name_of(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < place_.rank_names.size() ? place_.rank_names[index]
                                          : "rank " + std::to_string(rank);
}

void Tracer::start_timeline(const std::string& path, bool mark_cycles) {
  if (place_.rank != 0 || !recorder_.is_on()) return;
  const std::lock_guard guard(timeline_mutex_);
  finish_timeline();
  try {
    begin_timeline(path, mark_cycles);
    // Of a new world all that was before belongs to it, too: others may have been quicker.
    for (auto& [rank, source] : sources_) source.next = scribe_.joinable() ? source.view.end() : 0;
    has_timeline_.store(true);
  } catch (const Error& error) {
    log(place_.log, LogLevel::kError, std::string("there will be no timeline: ") + error.what());
  }
  if (scribe_.joinable()) call_scribe();
}

void Tracer::stop_timeline() {
  const std::lock_guard guard(timeline_mutex_);
  finish_timeline();
}

void Tracer::begin_timeline(const std::string& path, bool mark_cycles) {
  timeline_ = std::make_unique<Timeline>(TimelineConfig{.path = path,
                                                        .max_bytes = config_.timeline_max_bytes,
                                                        .mark_cycles = mark_cycles,
                                                        .data_plane = config_.data_plane,
                                                        .rank_names = place_.rank_names});
  for (const int rank : place_.local) {
    sources_.emplace(rank, Source{.view = RecorderView(memory_(rank)), .next = 0});
  }
}

// True when there was so much that more should be looked for soon.
bool Tracer::drain() {
  const std::lock_guard guard(timeline_mutex_);
  if (timeline_ == nullptr) return false;
  bool is_busy = false;
  try {
    for (auto& [rank, source] : sources_) is_busy |= drain(rank, source);
    timeline_->flush();
    if (!timeline_->is_full()) return is_busy;
    log(place_.log, LogLevel::kWarning,
        "the timeline has reached its largest size and ends here; see HOROVOD_TIMELINE_MAX_MB");
  } catch (const Error& error) {
    log(place_.log, LogLevel::kError, std::string("the timeline ends here: ") + error.what());
  }
  timeline_.reset();
  sources_.clear();
  has_timeline_.store(false);
  return false;
}

bool Tracer::drain(int rank, Source& source) {
  const RecorderView::Found found = source.view.read(source.next, true);
  source.next = found.end;
  if (found.lost != 0) timeline_->note_loss(rank, found.lost, now_ns());
  for (const Event& event : found.events) {
    const bool is_named = event.kind == EventKind::kSubmit || event.kind == EventKind::kFused;
    if (is_named && !timeline_->knows_label(rank, event.subject)) {
      if (const auto label = source.view.label(event.subject)) {
        timeline_->add_label(rank, event.subject, *label);
      }
    }
    timeline_->add(rank, event);
  }
  return found.events.size() > source.view.capacity() / 16;
}

void Tracer::finish_timeline() {
  if (timeline_ == nullptr) return;
  const std::int64_t deadline_ns = now_ns() + kLastEvents.count();
  try {
    do {
      for (auto& [rank, source] : sources_) drain(rank, source);
      if (!timeline_->has_open_bucket()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (now_ns() < deadline_ns);
    timeline_->flush();
  } catch (const Error& error) {
    log(place_.log, LogLevel::kError, std::string("the timeline ends here: ") + error.what());
  }
  timeline_.reset();
  sources_.clear();
  has_timeline_.store(false);
}

void Tracer::stop() {
  if (!scribe_.joinable()) return;
  stopping_.store(true);
  call_scribe();
  scribe_.join();
  stop_timeline();
}

void Tracer::abandon() {
  if (scribe_.joinable()) scribe_.detach();
}

}  // namespace hvd
