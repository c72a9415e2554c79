// Recorder files: the events of a recorder in a file, so that they outlive the process.
//
// A file begins with a line of JSON that describes the rest: labels, events and text, with the same
// bytes as in memory (docs/timeline.md has the layout). For the place of files see job_folder.h.
#pragma once

#include <optional>
#include <string>

#include "core/usage.h"
#include "trace/directory.h"
#include "trace/recorder.h"

namespace hvd {

struct RecordingHead {
  int rank = 0;
  std::string name;            // of the rank: "rank 1 (pid 4711 on localhost)"
  int written_by = 0;          // another rank where this one has died
  std::string reason;          // "error", "death", "end", "request", "signal", "call", "exception"
  std::string detail;          // the error's text, or the request's
  std::string world;           // a JSON object about the world, the same on all ranks
  std::string stacks;          // Python's, as text; may be empty
  std::optional<Usage> usage;  // of the rank's process in this world; none: it is another process
};

// Writes the events of `recorder` to the file `name` in `folder`. Replaces an existing file. Throws
// Error.
void write_recording(const RecorderView& recorder, const RecordingHead& head,
                     const Directory& folder, const std::string& name);

}  // namespace hvd
