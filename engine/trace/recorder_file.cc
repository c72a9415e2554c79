#include "trace/recorder_file.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "core/clock.h"
#include "core/text.h"

namespace hvd {

namespace {

template <typename Value>
std::span<const char> bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

struct StoredLabel {
  std::uint64_t id;
  Label label;
};

static_assert(sizeof(Event) == 24 && sizeof(StoredLabel) == 184);

std::vector<StoredLabel> labels_of(const RecorderView& recorder) {
  const std::uint64_t end = recorder.label_count();
  std::vector<StoredLabel> labels;
  for (std::uint64_t id = end - std::min<std::uint64_t>(end, Recorder::kLabels); id < end; ++id) {
    const auto label = recorder.label(static_cast<std::uint32_t>(id));
    if (label) labels.push_back({id, *label});
  }
  return labels;
}

std::string field(const char* name, auto value) {
  return std::string(",\"") + name + "\":" + std::to_string(value);
}

std::string usage_field(const Usage& usage) {
  const std::string fields = field("elapsed_ns", usage.elapsed_ns) + field("cpu_ns", usage.cpu_ns) +
                             field("kernel_ns", usage.kernel_ns) +
                             field("page_faults", usage.page_faults);
  return ",\"usage\":{" + fields.substr(1) + "}";
}

std::string head_line(const RecordingHead& head, std::size_t labels,
                      const RecorderView::Found& found) {
  return "{\"horovod_recording\":1" + field("rank", head.rank) +
         ",\"name\":" + json_text(head.name) + field("written_by", head.written_by) +
         field("labels", labels) + field("events", found.events.size()) +
         field("stacks_bytes", head.stacks.size()) + field("lost", found.lost) +
         field("written_ns", now_ns()) + field("written_epoch_ns", epoch_ns()) +
         ",\"reason\":" + json_text(head.reason) + ",\"detail\":" + json_text(head.detail) +
         (head.usage ? usage_field(*head.usage) : "") +
         ",\"world\":" + (head.world.empty() ? "{}" : head.world) + "}\n";
}

}  // namespace

void write_recording(const RecorderView& recorder, const RecordingHead& head,
                     const Directory& folder, const std::string& name) {
  // Labels last: every event that was read has its label now.
  const RecorderView::Found found = recorder.read(0);
  const std::vector<StoredLabel> labels = labels_of(recorder);
  const std::string line = head_line(head, labels.size(), found);
  const std::array<std::span<const char>, 4> parts{line, bytes_of(labels), bytes_of(found.events),
                                                   head.stacks};
  folder.replace(name, parts);
}

}  // namespace hvd
