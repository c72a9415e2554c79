// The folder of a job's recordings. It is inside a folder for all jobs. A user may have chosen that
// folder, and have other files in it.
//
// A *marker* shows that a folder belongs to Horovod: an empty file in it, with the folder's own
// name in its name. A folder without a marker of this user and that name is never opened, counted
// or removed. So a user can keep a job's recordings by renaming their folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/directory.h"

namespace hvd {

inline constexpr const char* kRecordingSuffix = ".hvdrec";
inline constexpr const char* kPresenceSuffix = ".running";  // describes a running rank, as JSON
inline constexpr const char* kOutcomeName = "outcome";      // how the launcher saw the job end
inline constexpr const char* kRequestName = "wanted";       // a new text in it requests recordings

class JobFolder {
 public:
  // Opens `<base>/<job>`, and makes it and `base` if they do not exist. The folder must belong to
  // this user, and so must `base` unless it `is_chosen`. Throws Error, also if the folder contains
  // other files.
  JobFolder(const std::string& base, bool is_chosen, const std::string& job);

  std::string path_of(const std::string& name) const { return folder_.path() + "/" + name; }
  const Directory& directory() const { return folder_; }
  // The text of the request file; empty if there is none.
  std::string recordings_wanted() const;
  void write_presence(const std::string& name, const std::string& text) const;
  void remove(const std::string& name) const { folder_.remove_own(name); }
  // Removes recordings of other jobs, and the oldest ones of this job, if they are too many or too
  // large. Other processes may do the same at the same time.
  void keep_limits() const;

 private:
  Directory base_;
  std::string job_;
  Directory folder_;
};

// A job with recordings.
struct KeptJob {
  bool may_go = true;  // it is not running, and is not this job
  bool has_failed = false;
  std::int64_t written_ns = 0;
  std::uint64_t size_bytes = 0;
};

// The jobs to remove, as places in `jobs`. First the oldest of the jobs that ended well or failed
// more than a day ago, until 16 of them are left and all jobs have at most 256 MB. Then the oldest
// of the other jobs, if these alone are larger than that. Pure.
std::vector<std::size_t> jobs_to_remove(const std::vector<KeptJob>& jobs, std::int64_t now_ns);

}  // namespace hvd
