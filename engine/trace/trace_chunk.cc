#include "trace/trace_chunk.h"

#include <algorithm>
#include <cstring>

#include "control/request.h"
#include "core/wire.h"

namespace hvd {

namespace {

// 73 years. Sums and differences of a few such times do not overflow.
constexpr std::int64_t kMostTimeNs = std::int64_t{1} << 61;

Label get_label(WireReader& reader) {
  Label label;
  const auto bytes = reader.get_bytes("label", sizeof label);
  std::memcpy(static_cast<void*>(&label), bytes.data(), sizeof label);
  const auto check = [&](const char* field, int found, int end) {
    if (found < end) return;
    reader.refuse(field, std::to_string(found), "less than " + std::to_string(end));
  };
  check("name_length", label.name_length, Label::kNameBytes + 1);
  check("kind", label.kind, kKindCount);
  check("dtype", label.dtype, kDtypeCount);
  check("op", label.op, kReduceOpCount);
  return label;
}

bool has_label(EventKind kind) {
  return kind == EventKind::kSubmit || kind == EventKind::kFused || kind == EventKind::kError ||
         kind == EventKind::kStall;
}

void check(const WireReader& reader, const Event& event) {
  if (event.kind > EventKind::kBlocked) {
    reader.refuse("kind of an event", std::to_string(static_cast<int>(event.kind)),
                  "at most " + std::to_string(static_cast<int>(EventKind::kBlocked)));
  }
  if (event.time_ns < 0 || event.time_ns > kMostTimeNs) {
    reader.refuse("time_ns", std::to_string(event.time_ns), "a time since the system's start");
  }
  if (event.kind == EventKind::kWaited && event.value > kMostTimeNs) {
    reader.refuse("value", std::to_string(event.value), "nanoseconds of a wait");
  }
  if (has_label(event.kind) && event.subject == Recorder::kNoLabel) {
    reader.refuse("subject", "no label", "a label");
  }
}

}  // namespace

std::string write_chunk(const TraceChunk& chunk) {
  WireWriter writer;
  writer.put(chunk.lost);
  writer.put(static_cast<std::int32_t>(chunk.rank));
  writer.put(static_cast<std::uint32_t>(chunk.labels.size()));
  writer.put(static_cast<std::uint32_t>(chunk.events.size()));
  for (const auto& [id, label] : chunk.labels) {
    writer.put(id);
    writer.put(label);
  }
  writer.put_bytes(chunk.events.data(), chunk.events.size() * sizeof(Event));
  const std::vector<std::byte> bytes = writer.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TraceChunk read_chunk(std::string_view bytes, std::span<const int> ranks) {
  WireReader reader("trace", std::as_bytes(std::span(bytes)));
  TraceChunk chunk;
  chunk.lost = reader.get<std::uint64_t>("lost", 0, kMostTimeNs);
  chunk.rank = reader.get<std::int32_t>("rank");
  if (std::ranges::find(ranks, chunk.rank) == ranks.end()) {
    reader.refuse("rank", "rank " + std::to_string(chunk.rank), "a rank of its sender's host");
  }
  const auto labels = reader.get<std::uint32_t>("labels", 0, Recorder::kLabels);
  const auto count = reader.get<std::uint32_t>("number of events", 0, Recorder::kMaxEvents);
  for (std::uint32_t i = 0; i < labels; ++i) {
    const auto id = reader.get<std::uint32_t>("label", 0, Recorder::kNoLabel - 1);
    chunk.labels.emplace_back(id, get_label(reader));
  }
  const auto events = reader.get_bytes("events", count * sizeof(Event));
  chunk.events.resize(count);
  if (count != 0) std::memcpy(chunk.events.data(), events.data(), events.size());
  reader.end();
  for (const Event& event : chunk.events) check(reader, event);
  return chunk;
}

const TraceChunk& TraceSource::next() {
  RecorderView::Found found = view_.read(next_, true, std::move(chunk_.events));
  next_ = found.end;
  chunk_.lost = found.lost;
  chunk_.events = std::move(found.events);
  chunk_.labels.clear();
  if (told_.empty()) told_.resize(Recorder::kLabels, Recorder::kNoLabel);
  for (const Event& event : chunk_.events) {
    if (event.kind != EventKind::kSubmit && event.kind != EventKind::kFused) continue;
    std::uint32_t& told = told_[event.subject % Recorder::kLabels];
    if (told == event.subject) continue;
    if (const auto label = view_.label(event.subject)) {
      chunk_.labels.emplace_back(event.subject, *label);
      told = event.subject;
    }
  }
  return chunk_;
}

}  // namespace hvd
