#include "runtime/tracer.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/quiet_thread.h"
#include "core/text.h"
#include "runtime/activity.h"
#include "trace/stack_snapshot.h"

namespace hvd {

namespace {

constexpr Nanoseconds kForever = std::chrono::hours(24);
constexpr Nanoseconds kRequestInterval = std::chrono::milliseconds(500);
// Of a stall report.
constexpr std::size_t kMostDescribed = 4;
constexpr int kMostStackLines = 12;
constexpr Nanoseconds kAnswerPatience = std::chrono::seconds(1);
constexpr Nanoseconds kFarPatience = std::chrono::milliseconds(2500);
constexpr Nanoseconds kMutualAnswer = std::chrono::milliseconds(20);

}  // namespace

Tracer::Tracer(TraceConfig config, TracePlace place, TraceMemory memory)
    : config_(std::move(config)),
      place_(std::move(place)),
      memory_(std::move(memory)),
      recorder_(memory_(place_.rank), config_.events),
      timeline_(config_, place_, memory_) {}

void Tracer::start() {
  if (!config_.timeline_path.empty()) {
    start_timeline(config_.timeline_path, config_.timeline_mark_cycles);
  }
  if (!recorder_.is_on()) return;
  announce();
  tracer_thread_ = quiet_thread([this] { run(); });
}

// In the job's folder, for those who want to know who runs.
void Tracer::announce() {
  if (config_.presence.empty() || config_.folder.empty()) return;
  try {
    folder_.emplace(job_folder());
    last_request_ = folder_->recordings_wanted();  // of somebody before
    folder_->write_presence(presence_name(), config_.presence);
  } catch (const std::exception& error) {
    folder_.reset();
    log(place_.log, LogLevel::kInfo,
        std::string("nobody can ask this rank for recordings: ") + error.what());
  }
}

JobFolder Tracer::job_folder() const {
  return {config_.folder, config_.is_chosen_folder, config_.job};
}

std::string Tracer::file_stem(int rank) const {
  return "rank-" + std::to_string(rank) + "-pid-" + std::to_string(getpid()) + "-world-" +
         std::to_string(config_.generation);
}

void Tracer::want_last_file() {
  if (!config_.presence.empty()) want_file("end", {}, place_.rank);
}

Tracer::~Tracer() { stop(); }

void Tracer::wake_tracer() {
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
  wake_tracer();
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
  Nanoseconds tracing_nap{};
  for (std::uint32_t seen = header.calls.load() - 1;;) {
    const bool is_called = seen != header.calls.load();
    seen = header.calls.load();
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
    if (is_called || may_be_asked_from_afar()) look_for_requests(wishes);
    for (const Wish& wish : wishes) carry_out(wish);
    answer_others();
    for (const Report& report : reports) log_report(report);
    if (timeline_.is_active()) tracing_nap = timeline_.work(tracing_nap);
    if (is_last) return;
    const Nanoseconds nap = timeline_.is_active()      ? tracing_nap
                            : may_be_asked_from_afar() ? kRequestInterval
                                                       : kForever;
    futex_wait(header.calls, seen, nap);
  }
}

// Who asks on this host wakes the scribe. Elsewhere that cannot be done, but it may be that the
// folder is the same.
bool Tracer::may_be_asked_from_afar() const {
  const bool spans_hosts = place_.local.size() < place_.rank_names.size();
  return spans_hosts && config_.is_chosen_folder && folder_;
}

void Tracer::look_for_requests(std::vector<Wish>& wishes) {
  if (!folder_) return;
  std::string wanted = folder_->recordings_wanted();
  if (wanted.empty() || wanted == last_request_) return;
  last_request_ = wanted;
  wishes.push_back({"request", std::move(wanted), place_.rank});
}

void Tracer::carry_out(const Wish& wish) {
  try {
    const bool is_own = wish.rank == place_.rank;
    const bool with_stacks = wish.reason == "signal" || wish.reason == "request";
    const std::string path = is_own ? file_of(recorder_, wish, {}, with_stacks)
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
                     .name = place_.name_of(wish.rank),
                     .written_by = place_.rank,
                     .reason = wish.reason,
                     .detail = wish.detail,
                     .world = config_.world,
                     .stacks = {}};
  if (with_stacks) head.stacks = stacks();
  if (!path.empty()) {
    const std::size_t slash = path.rfind('/');
    const std::string parent = slash == path.npos ? "." : path.substr(0, slash + 1);
    write_recording(recorder, head, Directory(parent, Directory::Links::kFollow),
                    path.substr(slash == path.npos ? 0 : slash + 1));
    return path;
  }
  if (config_.folder.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "there is no folder for recordings; give a path");
  }
  const JobFolder folder = job_folder();
  folder.keep_limits();
  const std::string name = file_stem(wish.rank) + "-" + wish.reason + kRecordingSuffix;
  write_recording(recorder, head, folder.directory(), name);
  return folder.path_of(name);
}

// On the scribe's thread.
std::string Tracer::stacks() {
  if (config_.stack_signal == 0) return {};
  return stack_snapshot(config_.stack_signal, config_.stack_fd);
}

void Tracer::answer_others() {
  answer();
  std::vector<Question> questions;
  {
    const std::lock_guard guard(mutex_);
    questions.swap(questions_);
  }
  for (const Question& question : questions) {
    if (std::ranges::find(place_.local, question.rank) == place_.local.end()) continue;
    send_(question.leader, NoteKind::kAnswer, question.rank, describe(question.rank));
  }
}

// Another rank of this host asks what this one is doing.
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
  if (!tracer_thread_.joinable()) {
    log(place_.log, LogLevel::kWarning, text);
    return;
  }
  {
    const std::lock_guard guard(mutex_);
    reports_.push_back({text, ranks});
  }
  wake_tracer();
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
  if (std::ranges::find(place_.local, rank) == place_.local.end()) return describe_far(rank);
  const RecorderView view(memory_(rank));
  std::string text = "  ";
  text.append(place_.name_of(rank)).append(" ").append(last_operations(view, now_ns()));
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

void Tracer::start_timeline(const std::string& path, bool mark_cycles) {
  if (place_.rank != 0 || !recorder_.is_on()) return;
  timeline_.start(path, mark_cycles, tracer_thread_.joinable());
  if (tracer_thread_.joinable()) wake_tracer();
}

void Tracer::stop_timeline() { timeline_.stop(); }

void Tracer::end_traces() {
  timeline_.end_sending();
  timeline_.stop();
}

void Tracer::connect(std::map<int, int> leaders, SendNote send) {
  leaders_ = std::move(leaders);
  send_ = std::move(send);
  std::map<int, std::vector<int>> hosts;
  for (const auto& [rank, leader] : leaders_) hosts[leader].push_back(rank);
  std::vector<std::vector<int>> others;
  for (auto& [leader, ranks] : hosts) {
    if (leader != place_.rank) others.push_back(std::move(ranks));
  }
  timeline_.connect(std::move(others), send_);
}

void Tracer::hear(int leader, NoteKind kind, int rank, const std::string& text) {
  switch (kind) {
    case NoteKind::kQuestion: {
      const std::lock_guard guard(mutex_);
      questions_.push_back({leader, rank});
      break;
    }
    case NoteKind::kAnswer: {
      const std::lock_guard guard(mutex_);
      answers_[rank] = text;
      answered_.notify_all();
      return;
    }
    case NoteKind::kTrace:
      timeline_.receive(leader, text);
      return;
    case NoteKind::kBeginTrace:
      if (recorder_.is_on()) timeline_.begin_sending(rank != 0);
      break;
    case NoteKind::kEndTrace:
      timeline_.end_sending();
      return;
    default:
      return;
  }
  if (recorder_.is_on()) wake_tracer();
}

// Of a rank of another host, whose leader knows.
std::string Tracer::describe_far(int rank) {
  const auto leader = leaders_.find(rank);
  if (leader == leaders_.end() || stopping_.load()) return {};
  std::unique_lock lock(mutex_);
  answers_.erase(rank);
  if (!send_(leader->second, NoteKind::kQuestion, rank, {})) return {};
  const std::int64_t deadline_ns = now_ns() + kFarPatience.count();
  const auto is_over = [&] { return answers_.contains(rank) || stopping_.load(); };
  while (!answered_.wait_for(lock, kMutualAnswer, is_over) && now_ns() < deadline_ns) {
    lock.unlock();
    answer_others();  // the other one may be asking, too
    lock.lock();
  }
  const auto answer = answers_.find(rank);
  return answer == answers_.end() ? std::string() : answer->second;
}

void Tracer::stop() {
  if (!tracer_thread_.joinable()) return;
  {
    const std::lock_guard guard(mutex_);
    stopping_.store(true);
    answered_.notify_all();
  }
  wake_tracer();
  tracer_thread_.join();
  if (folder_) folder_->remove(presence_name());
  end_traces();
}

void Tracer::abandon() {
  if (tracer_thread_.joinable()) tracer_thread_.detach();
}

}  // namespace hvd
