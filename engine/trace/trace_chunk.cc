#include "trace/trace_chunk.h"

#include <cstring>

#include "core/error.h"

namespace hvd {

namespace {

struct Head {
  std::uint64_t lost;
  std::uint32_t rank;
  std::uint32_t labels;
  std::uint32_t events;
  std::uint32_t reserved;
};

void append(std::string& to, const void* data, std::size_t bytes) {
  to.append(static_cast<const char*>(data), bytes);
}

void take(std::string_view& from, void* to, std::size_t bytes) {
  if (from.size() < bytes) throw Error(ErrorCode::kInternal, "a host sent a broken trace");
  std::memcpy(to, from.data(), bytes);
  from.remove_prefix(bytes);
}

}  // namespace

std::string write_chunk(const TraceChunk& chunk) {
  const Head head{.lost = chunk.lost,
                  .rank = static_cast<std::uint32_t>(chunk.rank),
                  .labels = static_cast<std::uint32_t>(chunk.labels.size()),
                  .events = static_cast<std::uint32_t>(chunk.events.size()),
                  .reserved = 0};
  std::string bytes;
  append(bytes, &head, sizeof head);
  for (const auto& [id, label] : chunk.labels) {
    append(bytes, &id, sizeof id);
    append(bytes, &label, sizeof label);
  }
  append(bytes, chunk.events.data(), chunk.events.size() * sizeof(Event));
  return bytes;
}

TraceChunk read_chunk(std::string_view bytes) {
  Head head{};
  take(bytes, &head, sizeof head);
  TraceChunk chunk{
      .rank = static_cast<int>(head.rank), .lost = head.lost, .labels = {}, .events = {}};
  for (std::uint32_t i = 0; i < head.labels; ++i) {
    auto& [id, label] = chunk.labels.emplace_back();
    take(bytes, &id, sizeof id);
    take(bytes, &label, sizeof label);
    if (label.name_length > Label::kNameBytes) {
      throw Error(ErrorCode::kInternal, "a host sent a broken trace");
    }
  }
  if (bytes.size() != head.events * sizeof(Event)) {
    throw Error(ErrorCode::kInternal, "a host sent a broken trace");
  }
  chunk.events.resize(head.events);
  std::memcpy(chunk.events.data(), bytes.data(), bytes.size());
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
