// The folder of a job's recordings, in a folder for those of all jobs, which a user may have chosen
// and have other things in.
//
// A *marker* in it, an empty file with the folder's own name in its name, says that it is ours. A
// folder without a marker of this user and that name is never opened, counted or removed; so a user
// keeps a job's recordings for good by renaming their folder.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/directory.h"

namespace hvd {

inline constexpr const char* kRecordingSuffix = ".hvdrec";
inline constexpr const char* kPresenceSuffix = ".running";  // describes the rank that runs, as JSON
inline constexpr const char* kOutcomeName = "outcome";      // how the launcher saw the job end
inline constexpr const char* kRequestName = "wanted";       // a new text in it asks for recordings

class JobFolder {
 public:
  // Opens `<base>/<job>`; makes it, and `base`, if need be. `base` has to be this user's alone,
  // too, unless it `is_chosen`. Throws Error, also where the folder has other things in it.
  JobFolder(const std::string& base, bool is_chosen, const std::string& job);

  std::string path_of(const std::string& name) const { return folder_.path() + "/" + name; }
  const Directory& directory() const { return folder_; }
  // What is written in the request file; empty for none.
  std::string recordings_wanted() const;
  void write_presence(const std::string& name, const std::string& text) const;
  void remove(const std::string& name) const { folder_.remove_own(name); }
  // Removes recordings of other jobs, and of this one the oldest, where they are too many or too
  // large. Others may do the same at the same time.
  void keep_limits() const;

 private:
  Directory base_;
  std::string job_;
  Directory folder_;
};

// What is known of a job whose recordings are there.
struct KeptJob {
  bool may_go = true;  // neither running nor the own one
  bool has_failed = false;
  std::int64_t written_ns = 0;
  std::uint64_t size_bytes = 0;
};

// Which ones go, as places in `jobs`: of those that ended well, or failed more than a day ago, the
// oldest, until 16 are left and all are at most 256 MB; then the oldest of the others, if those are
// larger by themselves. Pure.
std::vector<std::size_t> jobs_to_remove(const std::vector<KeptJob>& jobs, std::int64_t now_ns);

}  // namespace hvd
