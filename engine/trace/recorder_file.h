// Recorder files: what a recorder holds, written down so that it outlives the process.
//
// A file is a line of JSON that says what follows, then labels, events and text, all as they lie in
// memory (docs/timeline.md has the layout). job_folder.h says where files live.
#pragma once

#include <cstdint>
#include <string>

#include "trace/directory.h"
#include "trace/recorder.h"

namespace hvd {

struct RecordingHead {
  int rank = 0;
  std::string name;    // of the rank: "rank 1 (pid 4711 on localhost)"
  int written_by = 0;  // another rank where this one has died
  std::string reason;  // "error", "death", "end", "request", "signal", "call", "exception"
  std::string detail;  // the error's text, or the request's
  std::string world;   // a JSON object: what all ranks know of the world
  std::string stacks;  // Python's, as text; may be empty
};

// Writes what `recorder` holds to the file `name` in `folder`, in place of one that is there.
// Throws Error.
void write_recording(const RecorderView& recorder, const RecordingHead& head,
                     const Directory& folder, const std::string& name);

}  // namespace hvd
