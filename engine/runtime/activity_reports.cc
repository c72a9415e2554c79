#include "runtime/activity_reports.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <utility>
#include <vector>

#include "control/request.h"
#include "core/text.h"
#include "trace/stack_snapshot.h"

namespace hvd {

namespace {

constexpr std::size_t kOperations = 3;
constexpr std::uint64_t kEventsToLookAt = 4096;

std::string ago(std::int64_t duration_ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s ago", static_cast<double>(duration_ns) / 1e9);
  return text.data();
}

std::string title_of(const Label& label) {
  if (is_numbered_name(label.text())) return std::string(label.text());
  std::string operation = label.tensors > 1 ? "grouped_" : "";
  operation += label.kind < kKindCount ? name_of(static_cast<Kind>(label.kind)) : "operation";
  std::string_view name = label.text();
  if (name.starts_with(operation + ".")) name.remove_prefix(operation.size() + 1);
  operation.append(" '").append(name).append("'");
  if (label.process_set != 0) {
    operation.append(" of process set ").append(std::to_string(label.process_set));
  }
  return operation;
}

// The state of the operation that was submitted by event `index`.
const char* fate_of(const std::vector<Event>& events, std::size_t index) {
  const Event& submission = events[index];
  const char* fate = "waits for others";
  std::uint64_t bucket = 0;
  bool is_running = false;
  for (std::size_t i = index + 1; i < events.size(); ++i) {
    const Event& event = events[i];
    if (event.process_set != submission.process_set) continue;
    if (event.kind == EventKind::kError && event.subject == submission.subject) return "failed";
    if (event.kind == EventKind::kFused && event.subject == submission.subject) {
      is_running = true;
      bucket = event.value;
      fate = "running";
    }
    if (event.kind == EventKind::kBucketDone && is_running && event.subject == bucket) {
      return "done";
    }
  }
  return fate;
}

// Limits of a stall report.
constexpr std::size_t kMostDescribed = 4;
constexpr int kMostStackLines = 12;
constexpr Nanoseconds kAnswerPatience = std::chrono::seconds(1);
constexpr Nanoseconds kFarPatience = std::chrono::milliseconds(2500);
constexpr Nanoseconds kMutualAnswer = std::chrono::milliseconds(20);

// The innermost first.
std::vector<std::string_view> calls_of_main(std::string_view stacks) {
  std::vector<std::string_view> calls;
  const std::size_t begin = stacks.rfind("most recent call first");
  if (begin == std::string_view::npos) return calls;
  stacks.remove_prefix(std::min(stacks.find('\n', begin), stacks.size() - 1) + 1);
  while (stacks.starts_with("  File ")) {
    const std::size_t end = std::min(stacks.find('\n'), stacks.size());
    calls.push_back(stacks.substr(2, end - 2));
    stacks.remove_prefix(std::min(end + 1, stacks.size()));
  }
  return calls;
}

// Whether a call is of an installed package or of Python itself, as in src/horovod/trace/stacks.py.
bool is_installed(std::string_view call) {
  constexpr std::array<std::string_view, 3> kPlaces = {"/site-packages/", "/dist-packages/",
                                                       "\"<frozen"};
  const auto is_in = [call](std::string_view place) { return call.find(place) != call.npos; };
  if (std::ranges::any_of(kPlaces, is_in)) return true;
  const std::size_t version = call.find("/python3");  // a folder, not the program's own file
  return version != call.npos && call.find('/', version + 1) != call.npos;
}

}  // namespace

std::string last_operations(const RecorderView& recorder, std::int64_t now) {
  if (recorder.capacity() == 0) return "keeps no flight recorder";
  const std::vector<Event> events = recorder.last(kEventsToLookAt);
  std::string text;
  std::size_t count = 0;
  for (std::size_t i = events.size(); i-- > 0 && count < kOperations;) {
    const Event& event = events[i];
    if (event.kind == EventKind::kLeft && text.empty()) return "has shut down";
    if (event.kind != EventKind::kSubmit) continue;
    const auto label = recorder.label(event.subject);
    text.append(count++ == 0 ? "has last submitted " : ", before that ");
    text.append(label ? title_of(*label) : "an operation").append(" ");
    text.append(ago(now - event.time_ns)).append(" (").append(fate_of(events, i)).append(")");
  }
  return text.empty() ? "has submitted nothing" : text;
}

std::string main_stack(std::string_view stacks, std::string_view indent, int most_lines) {
  const std::vector<std::string_view> calls = calls_of_main(stacks);
  const auto own = std::ranges::find_if_not(calls, is_installed);
  std::string text;
  for (auto call = calls.begin(); call != calls.end() && most_lines > 0; ++call, --most_lines) {
    text.append(indent).append(*call).append("\n");
    if (call == calls.begin() && call < own && own != calls.end()) call = std::prev(own);
  }
  return text;
}

bool is_stopped(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return false;
  const char state = line[name_end + 2];
  return state == 'T' || state == 't';
}

void ActivityReports::connect(std::map<int, int> leaders, SendNote send) {
  leaders_ = std::move(leaders);
  send_ = std::move(send);
}

void ActivityReports::add(const std::string& text, const std::vector<int>& ranks) {
  const std::lock_guard guard(mutex_);
  reports_.push_back({text, ranks});
}

void ActivityReports::note_question(int leader, int rank) {
  const std::lock_guard guard(mutex_);
  questions_.push_back({leader, rank});
}

void ActivityReports::note_answer(int rank, const std::string& text) {
  const std::lock_guard guard(mutex_);
  answers_[rank] = text;
  answered_.notify_all();
}

void ActivityReports::stop() {
  const std::lock_guard guard(mutex_);
  is_stopping_.store(true);
  answered_.notify_all();
}

void ActivityReports::work() {
  answer_others();
  std::vector<Report> reports;
  {
    const std::lock_guard guard(mutex_);
    reports.swap(reports_);
  }
  for (const Report& report : reports) log_report(report);
}

void ActivityReports::answer_others() {
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

// Answers another rank of this host, which asks what this rank is doing.
void ActivityReports::answer() {
  RecorderHeader& header = recorder_.header();
  const std::uint32_t questions = header.questions.load();
  if (questions == header.answers.load()) return;
  // The end of the text: the main thread comes last.
  const std::string all = stacks();
  const std::size_t most = RecorderHeader::kAnswerBytes - 1;
  copy_text(header.answer, all.size() > most ? all.substr(all.size() - most) : all);
  header.answers.store(questions);
  futex_wake_all(header.answers);
}

void ActivityReports::log_report(const Report& report) {
  std::string text = report.text;
  for (std::size_t i = 0; i < std::min(report.ranks.size(), kMostDescribed); ++i) {
    const std::string lines = describe(report.ranks[i]);
    if (!lines.empty()) text.append("\n").append(lines);
  }
  log(place_.log, LogLevel::kWarning, text);
}

std::string ActivityReports::describe(int rank) {
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

// The Python stacks of another rank, from its tracer thread; empty if it does not answer soon.
std::string ActivityReports::ask(RecorderHeader& header) {
  if (is_stopping_.load() || header.capacity.load() == 0) return {};
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
    answer();  // the other rank may be asking, too
  }
}

// Asks the leader of another host about one of its ranks.
std::string ActivityReports::describe_far(int rank) {
  const auto leader = leaders_.find(rank);
  if (leader == leaders_.end() || is_stopping_.load()) return {};
  std::unique_lock lock(mutex_);
  answers_.erase(rank);
  if (!send_(leader->second, NoteKind::kQuestion, rank, {})) return {};
  const std::int64_t deadline_ns = now_ns() + kFarPatience.count();
  const auto is_over = [&] { return answers_.contains(rank) || is_stopping_.load(); };
  while (!answered_.wait_for(lock, kMutualAnswer, is_over) && now_ns() < deadline_ns) {
    lock.unlock();
    answer_others();  // the other rank may be asking, too
    lock.lock();
  }
  const auto answer = answers_.find(rank);
  return answer == answers_.end() ? std::string() : answer->second;
}

std::string ActivityReports::stacks() const {
  if (config_.stack_signal == 0) return {};
  return stack_snapshot(config_.stack_signal, config_.stack_fd);
}

}  // namespace hvd
