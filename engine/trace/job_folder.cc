#include "trace/job_folder.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/clock.h"
#include "core/error.h"

namespace hvd {

namespace {

constexpr const char* kMarker = ".horovod-recordings-of-";
constexpr const char* kDraftSuffix = ".part";
constexpr std::size_t kMaxJobs = 16;
constexpr std::uint64_t kMaxBytes = 256U << 20;
constexpr std::uint64_t kMaxJobBytes = kMaxBytes / 2;
constexpr std::int64_t kDayNs = 24LL * 3600 * 1'000'000'000;
constexpr std::size_t kRequestBytes = 64;
constexpr std::string_view kGoodOutcome = R"({"status": 0,)";  // as outcome.py begins the file

std::string marker_of(const std::string& job) { return kMarker + job; }

// Reads `rank-<number>-pid-<number>-world-<number>` and the rest of a name; none for other names.
struct RankFile {
  int pid;
  std::string_view rest;
};

std::optional<RankFile> parsed(std::string_view name) {
  int number = 0;
  int pid = 0;
  for (const std::string_view word : {"rank-", "-pid-", "-world-"}) {
    if (!name.starts_with(word)) return std::nullopt;
    name.remove_prefix(word.size());
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc() || number < 0) return std::nullopt;
    name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    if (word == "-pid-") pid = number;
  }
  return RankFile{pid, name};
}

bool is_recording(std::string_view name) {
  const auto file = parsed(name);
  return file && file->rest.starts_with('-') && file->rest.ends_with(kRecordingSuffix);
}

bool is_presence(std::string_view name) {
  const auto file = parsed(name);
  return file && file->rest == kPresenceSuffix;
}

// A process that is killed while it writes leaves such a file; see Directory::replace.
bool is_draft(std::string_view name) {
  if (!name.starts_with('.') || !name.ends_with(kDraftSuffix)) return false;
  name.remove_prefix(1);
  return parsed(name) || name.starts_with(kOutcomeName) || name.starts_with(kRequestName);
}

bool is_ours(std::string_view name) {
  return is_recording(name) || is_presence(name) || is_draft(name) || name == kRequestName ||
         name == kOutcomeName;
}

bool is_living(std::string_view presence) {
  const auto file = parsed(presence);
  return file && file->pid > 0 && (kill(file->pid, 0) == 0 || errno == EPERM);
}

bool is_of_failure(std::string_view recording) {
  return recording.ends_with("-error.hvdrec") || recording.ends_with("-death.hvdrec");
}

// The launcher's file decides. Without it, the files of the ranks decide.
bool has_failed(const Directory& folder, const std::vector<std::string>& names) {
  const std::string outcome = folder.read_own(kOutcomeName, kGoodOutcome.size());
  if (!outcome.empty()) return outcome != kGoodOutcome;
  return std::ranges::any_of(names, is_of_failure) || std::ranges::any_of(names, is_presence);
}

KeptJob measured(const Directory& folder, bool is_own) {
  const std::vector<std::string> names = folder.names();
  const bool is_running = std::ranges::any_of(
      names, [](const std::string& name) { return is_presence(name) && is_living(name); });
  KeptJob job{.may_go = !is_own && !is_running,
              .has_failed = !is_running && has_failed(folder, names),
              .written_ns = folder.written_ns(),
              .size_bytes = 0};
  for (const std::string& name : names) {
    if (!is_ours(name)) continue;
    if (const auto file = folder.own_file(name)) job.size_bytes += file->size_bytes;
  }
  return job;
}

void remove_recordings(const Directory& base, const Directory& folder, const std::string& name) {
  bool has_others = false;
  for (const std::string& entry : folder.names()) {
    if (is_ours(entry)) folder.remove_own(entry);
  }
  for (const std::string& entry : folder.names()) has_others |= entry != marker_of(name);
  if (has_others) return;
  folder.remove_own(marker_of(name));
  base.remove_folder(name);
  // A job of this name may have begun meanwhile. Then the folder still exists, and is marked again.
  if (base.has_own_folder(name)) folder.touch(marker_of(name));
}

bool is_marked(const Directory& base, const std::string& name) {
  return base.has_own_folder(name) && base.own_file(name + "/" + marker_of(name)).has_value();
}

void remove_jobs(const Directory& base, const std::string& own) {
  std::vector<std::string> names;
  std::vector<KeptJob> jobs;
  const auto folder_of = [&](const std::string& name) -> std::optional<Directory> {
    if (!is_marked(base, name)) return std::nullopt;
    Directory folder(base, name);
    if (!folder.is_own() || !folder.own_file(marker_of(name))) return std::nullopt;
    return folder;
  };
  for (const std::string& name : base.names()) {
    const auto folder = folder_of(name);
    if (!folder) continue;
    names.push_back(name);
    jobs.push_back(measured(*folder, name == own));
  }
  for (const std::size_t place : jobs_to_remove(jobs, epoch_ns())) {
    if (const auto folder = folder_of(names[place])) {
      remove_recordings(base, *folder, names[place]);
    }
  }
}

// For a job that makes one world after another.
void remove_oldest_of(const Directory& folder) {
  std::vector<Directory::File> files;
  std::uint64_t total = 0;
  for (const std::string& name : folder.names()) {
    if (!is_recording(name)) continue;
    if (auto file = folder.own_file(name)) {
      total += file->size_bytes;
      files.push_back(std::move(*file));
    }
  }
  std::ranges::sort(files, {}, &Directory::File::written_ns);
  for (const Directory::File& file : files) {
    if (total <= kMaxJobBytes) return;
    folder.remove_own(file.name);
    total -= file.size_bytes;
  }
}

Directory opened_base(const std::string& path, bool is_chosen) {
  Directory::make(path);
  Directory base(path, is_chosen ? Directory::Links::kFollow : Directory::Links::kRefuse);
  // If all users may make folders there, another user may have made it first.
  if (!is_chosen && !base.is_own()) {
    throw Error(ErrorCode::kSystem, path + " is not a folder that this user alone can write to");
  }
  return base;
}

Directory opened_job(const Directory& base, const std::string& job) {
  base.make_inside(job);
  Directory folder(base, job);
  if (!folder.is_own()) {
    throw Error(ErrorCode::kSystem,
                folder.path() + " is not a folder that this user alone can write to");
  }
  const std::string marker = marker_of(job);
  if (folder.own_file(marker)) return folder;
  // Another rank may have made the marker since the check, and other files after it. So check
  // again.
  if (!folder.names().empty() && !folder.own_file(marker)) {
    throw Error(ErrorCode::kSystem, folder.path() +
                                        " holds something else than recordings; choose another "
                                        "HOROVOD_JOB_ID or HOROVOD_RECORDER_DIR");
  }
  folder.touch(marker);
  return folder;
}

}  // namespace

JobFolder::JobFolder(const std::string& base, bool is_chosen, const std::string& job)
    : base_(opened_base(base, is_chosen)), job_(job), folder_(opened_job(base_, job)) {}

std::string JobFolder::recordings_wanted() const {
  return folder_.read_own(kRequestName, kRequestBytes);
}

void JobFolder::write_presence(const std::string& name, const std::string& text) const {
  const std::span<const char> part(text);
  folder_.replace(name, {&part, 1});
}

void JobFolder::keep_limits() const {
  remove_jobs(base_, job_);
  remove_oldest_of(folder_);
}

std::vector<std::size_t> jobs_to_remove(const std::vector<KeptJob>& jobs, std::int64_t now_ns) {
  const auto is_kept_longer = [&](const KeptJob& job) {
    return job.has_failed && now_ns - job.written_ns < kDayNs;
  };
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (const KeptJob& job : jobs) {
    bytes += job.size_bytes;
    count += is_kept_longer(job) ? 0 : 1;
  }
  std::vector<std::size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t place) {
    return std::tuple(is_kept_longer(jobs[place]), jobs[place].written_ns, place);
  });
  std::vector<std::size_t> removed;
  for (const std::size_t place : order) {
    const KeptJob& job = jobs[place];
    const bool is_one_too_many = !is_kept_longer(job) && count > kMaxJobs;
    if (!job.may_go || !(is_one_too_many || bytes > kMaxBytes)) continue;
    removed.push_back(place);
    bytes -= job.size_bytes;
    count -= is_kept_longer(job) ? 0 : 1;
  }
  return removed;
}

}  // namespace hvd
