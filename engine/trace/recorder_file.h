// Recorder files: what a recorder holds, written down so that it outlives the process.
//
// A file is a line of JSON that says what follows, then labels, events and text, all as they lie in
// memory (docs/timeline.md has the layout). Files live in a folder per job inside one folder per
// user, which keeps the last few jobs only.
#pragma once

#include <cstdint>
#include <string>

#include "trace/recorder.h"

namespace hvd {

inline constexpr const char* kRecordingSuffix = ".hvdrec";
inline constexpr const char* kPresenceSuffix = ".running";  // says who runs, as JSON
inline constexpr const char* kOutcomeName = "outcome";      // how the launcher saw the job end
inline constexpr const char* kRequestName = "wanted";       // a new text in it asks for recordings

struct RecordingHead {
  int rank = 0;
  std::string name;    // of the rank: "rank 1 (pid 4711 on localhost)"
  int written_by = 0;  // another rank where this one has died
  std::string reason;  // "error", "death", "end", "request", "signal", "call"
  std::string detail;  // the error's text, or the request's
  std::string world;   // a JSON object: what all ranks know of the world
  std::string stacks;  // Python's, as text; may be empty
};

// Writes what `recorder` holds to `path`, over what was there. Throws Error.
void write_recording(const RecorderView& recorder, const RecordingHead& head,
                     const std::string& path);

// Writes a file that says that a rank runs; it is the caller's to remove. Throws Error.
void write_presence(const std::string& path, const std::string& text);

// What is written in the request file of a job's folder; empty for none.
std::string recordings_wanted(const std::string& folder);

// Makes the folder `<base>/<job>`, which this user alone can read, and removes recordings of the
// oldest jobs from `base` where they are too many or too large, and of this job the oldest ones.
// Throws Error when it cannot be made or is not this user's alone; so must be `base`, unless the
// user has chosen it.
std::string prepare_folder(const std::string& base, bool is_chosen, const std::string& job);

}  // namespace hvd
