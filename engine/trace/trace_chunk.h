// Events of a rank's recorder, on their way to the host that writes the timeline, and the labels
// that they refer to for the first time.
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
// The chunk must be of one of `ranks`. Throws BadMessage.
TraceChunk read_chunk(std::string_view bytes, std::span<const int> ranks);

// Reads a recorder, chunk after chunk.
class TraceSource {
 public:
  TraceSource(RecorderView view, int rank, std::uint64_t first)
      : view_(std::move(view)), next_(first) {
    chunk_.rank = rank;
  }

  // The events since the last call, and the labels that were not in an earlier chunk. Valid until
  // the next call.
  const TraceChunk& next();
  std::uint32_t capacity() const { return view_.capacity(); }

 private:
  RecorderView view_;
  std::uint64_t next_;
  TraceChunk chunk_;
  std::vector<std::uint32_t> told_;  // labels
};

}  // namespace hvd
