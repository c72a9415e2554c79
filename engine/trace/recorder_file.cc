#include "trace/recorder_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "trace/json_text.h"

namespace hvd {

namespace {

namespace fs = std::filesystem;

constexpr const char* kPartSuffix = ".part";
constexpr std::size_t kMaxJobs = 16;
constexpr std::uintmax_t kMaxBytes = 256U << 20;
constexpr std::uintmax_t kMaxJobBytes = kMaxBytes / 2;
constexpr std::size_t kRequestBytes = 64;

class OpenFile {
 public:
  explicit OpenFile(std::string path)
      : path_(std::move(path)),
        fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)) {
    if (fd_ < 0) throw system_error("opening " + path_, errno);
  }
  ~OpenFile() { close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  void write(std::span<const char> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw system_error("writing " + path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

 private:
  const std::string path_;
  const int fd_;
};

template <typename Value>
std::span<const char> bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

struct StoredLabel {
  std::uint64_t id;
  Label label;
};

static_assert(sizeof(Event) == 24 && sizeof(StoredLabel) == 184);

std::vector<StoredLabel> labels_of(const RecorderView& recorder) {
  const std::uint64_t end = recorder.label_count();
  std::vector<StoredLabel> labels;
  for (std::uint64_t id = end - std::min<std::uint64_t>(end, Recorder::kLabels); id < end; ++id) {
    const auto label = recorder.label(static_cast<std::uint32_t>(id));
    if (label) labels.push_back({id, *label});
  }
  return labels;
}

std::int64_t epoch_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<Nanoseconds>(now).count();
}

std::string head_line(const RecordingHead& head, std::size_t labels,
                      const RecorderView::Found& found) {
  const auto field = [](const char* name, auto value) {
    return std::string(",\"") + name + "\":" + std::to_string(value);
  };
  return "{\"horovod_recording\":1" + field("rank", head.rank) +
         ",\"name\":" + json_text(head.name) + field("written_by", head.written_by) +
         field("labels", labels) + field("events", found.events.size()) +
         field("stacks_bytes", head.stacks.size()) + field("lost", found.lost) +
         field("written_ns", now_ns()) + field("written_epoch_ns", epoch_ns()) +
         ",\"reason\":" + json_text(head.reason) + ",\"detail\":" + json_text(head.detail) +
         ",\"world\":" + (head.world.empty() ? "{}" : head.world) + "}\n";
}

bool is_recording(const fs::path& path) {
  return path.extension() == kRecordingSuffix || path.extension() == kPartSuffix;
}

bool is_presence(const fs::path& path) { return path.extension() == kPresenceSuffix; }

bool is_ours(const fs::path& path) {
  return is_recording(path) || is_presence(path) || path.filename() == kRequestName ||
         path.filename() == kOutcomeName;
}

// Whether the process that a presence file's name tells lives on this host.
bool is_living(const fs::path& presence) {
  constexpr std::string_view kBefore = "-pid-";
  const std::string name = presence.filename().string();
  const std::size_t begin = name.find(kBefore);
  const int pid = begin == name.npos ? 0 : std::atoi(name.c_str() + begin + kBefore.size());
  return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

struct JobFolder {
  fs::path path;
  fs::file_time_type written;
  std::uintmax_t size_bytes = 0;
  bool is_running = false;
};

JobFolder measured(const fs::path& path) {
  std::error_code ignored;
  JobFolder folder{.path = path, .written = fs::last_write_time(path, ignored)};
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    if (is_presence(entry.path())) folder.is_running = folder.is_running || is_living(entry.path());
    if (!entry.is_regular_file(ignored) || !is_recording(entry.path())) continue;
    const auto size_bytes = entry.file_size(ignored);
    if (!ignored) folder.size_bytes += size_bytes;
  }
  return folder;
}

void remove_recordings(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (is_ours(entry.path())) fs::remove(entry.path(), ignored);
  }
  fs::remove(folder, ignored);  // if nothing else is in it
}

// Others may do the same at the same time: what is gone already is no error.
void remove_oldest(const fs::path& base, const fs::path& own) {
  std::error_code ignored;
  std::vector<JobFolder> folders;
  std::uintmax_t total = 0;
  for (const auto& entry : fs::directory_iterator(base, ignored)) {
    if (entry.is_symlink(ignored) || !entry.is_directory(ignored)) continue;
    folders.push_back(measured(entry.path()));
    total += folders.back().size_bytes;
  }
  std::ranges::sort(folders, {}, &JobFolder::written);
  std::size_t left = folders.size();
  for (const JobFolder& folder : folders) {
    if (left <= kMaxJobs && total <= kMaxBytes) return;
    if (folder.path == own || folder.is_running) continue;
    remove_recordings(folder.path);
    total -= folder.size_bytes;
    --left;
  }
}

// Of a job that makes one world after another.
void remove_oldest_of(const fs::path& own) {
  struct File {
    fs::path path;
    fs::file_time_type written;
    std::uintmax_t size_bytes;
  };
  std::error_code ignored;
  std::vector<File> files;
  std::uintmax_t total = 0;
  for (const auto& entry : fs::directory_iterator(own, ignored)) {
    if (!is_recording(entry.path())) continue;
    const auto size_bytes = entry.file_size(ignored);
    if (ignored) continue;
    files.push_back({entry.path(), entry.last_write_time(ignored), size_bytes});
    total += size_bytes;
  }
  if (total <= kMaxJobBytes) return;
  std::ranges::sort(files, {}, &File::written);
  for (const File& file : files) {
    if (total <= kMaxJobBytes) return;
    fs::remove(file.path, ignored);
    total -= file.size_bytes;
  }
}

void make_folder(const fs::path& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw system_error("making the folder " + path.string(), errno);
  }
}

void make_own_folder(const fs::path& path) {
  make_folder(path);
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0) {
    throw system_error("looking at the folder " + path.string(), errno);
  }
  // Where anybody may make folders, somebody else may have been first.
  const bool is_own = S_ISDIR(found.st_mode) && found.st_uid == geteuid();
  if (!is_own || (found.st_mode & 022) != 0) {
    throw Error(ErrorCode::kSystem,
                path.string() + " is not a folder that this user alone can write to");
  }
}

}  // namespace

void write_recording(const RecorderView& recorder, const RecordingHead& head,
                     const std::string& path) {
  // Labels last: an event that was read has its label by then.
  const RecorderView::Found found = recorder.read(0);
  const std::vector<StoredLabel> labels = labels_of(recorder);
  const std::string part = path + "." + std::to_string(getpid()) + kPartSuffix;
  try {
    const OpenFile file(part);
    const std::string line = head_line(head, labels.size(), found);
    file.write({line.data(), line.size()});
    file.write(bytes_of(labels));
    file.write(bytes_of(found.events));
    file.write({head.stacks.data(), head.stacks.size()});
  } catch (...) {
    unlink(part.c_str());
    throw;
  }
  if (rename(part.c_str(), path.c_str()) != 0) throw system_error("renaming " + part, errno);
}

std::string prepare_folder(const std::string& base, bool is_chosen, const std::string& job) {
  if (is_chosen) {
    make_folder(base);
  } else {
    make_own_folder(base);
  }
  const fs::path folder = fs::path(base) / job;
  make_own_folder(folder);
  remove_oldest(base, folder);
  remove_oldest_of(folder);
  return folder.string();
}

void write_presence(const std::string& path, const std::string& text) {
  const OpenFile file(path);
  file.write({text.data(), text.size()});
}

std::string recordings_wanted(const std::string& folder) {
  const std::string path = folder + "/" + kRequestName;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return {};
  std::string text(kRequestBytes, '\0');
  const ssize_t count = read(fd, text.data(), text.size());
  close(fd);
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return text;
}

}  // namespace hvd
