// What a rank's recorder holds, on its way to the host that writes the timeline: events, and the
// labels that they refer to for the first time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trace/recorder.h"

namespace hvd {

struct TraceChunk {
  int rank = 0;
  std::uint64_t lost = 0;  // events before these
  std::vector<std::pair<std::uint32_t, Label>> labels;
  std::vector<Event> events;
};

std::string write_chunk(const TraceChunk& chunk);
// Of one of `ranks`. Throws BadMessage.
TraceChunk read_chunk(std::string_view bytes, std::span<const int> ranks);

// Reads a recorder bit by bit.
class TraceSource {
 public:
  TraceSource(RecorderView view, int rank, std::uint64_t first)
      : view_(std::move(view)), next_(first) {
    chunk_.rank = rank;
  }

  // What has come since the last call, until the next one; labels that were not in an earlier
  // chunk.
  const TraceChunk& next();
  std::uint32_t capacity() const { return view_.capacity(); }

 private:
  RecorderView view_;
  std::uint64_t next_;
  TraceChunk chunk_;
  std::vector<std::uint32_t> told_;  // labels
};

}  // namespace hvd
