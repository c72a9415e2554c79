#include "runtime/activity.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <vector>

#include "control/request.h"

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

// What became of the operation that was submitted by event `index`.
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
  const std::size_t begin = stacks.rfind("most recent call first");
  if (begin == std::string_view::npos) return {};
  stacks.remove_prefix(stacks.find('\n', begin) + 1);
  std::string text;
  for (int line = 0; line < most_lines && stacks.starts_with("  File "); ++line) {
    const std::size_t end = stacks.find('\n');
    text.append(indent).append(stacks.substr(2, end == stacks.npos ? end : end - 2)).append("\n");
    if (end == std::string_view::npos) break;
    stacks.remove_prefix(end + 1);
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

}  // namespace hvd
