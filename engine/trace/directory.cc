#include "trace/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "core/error.h"

namespace hvd {

namespace {

constexpr mode_t kOthersCanWrite = S_IWGRP | S_IWOTH;

std::int64_t written_ns_of(const struct stat& found) {
  return found.st_mtim.tv_sec * 1'000'000'000LL + found.st_mtim.tv_nsec;
}

bool is_own_folder(const struct stat& found) {
  return S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
         (found.st_mode & kOthersCanWrite) == 0;
}

bool is_own_file(const struct stat& found) {
  return S_ISREG(found.st_mode) && found.st_uid == geteuid();
}

// An unused name beside `name`.
std::string draft_name(const std::string& name) {
  std::array<unsigned char, 8> chance{};
  if (getrandom(chance.data(), chance.size(), 0) != static_cast<ssize_t>(chance.size())) {
    throw system_error("asking for random bytes", errno);
  }
  std::string draft(1, '.');
  draft.append(name, 0, 200).append(1, '.');
  for (const unsigned byte : chance) {
    draft += "0123456789abcdef"[byte >> 4];
    draft += "0123456789abcdef"[byte & 15];
  }
  return draft + ".part";
}

void write_all(int fd, std::span<const char> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error("writing " + path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace

Directory::Directory(const std::string& path, Links links) : path_(path) {
  const int no_link = links == Links::kRefuse ? O_NOFOLLOW : 0;
  fd_ = Descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | no_link));
  if (fd_ < 0) throw system_error("opening the folder " + path_, errno);
}

Directory::Directory(const Directory& parent, const std::string& name)
    : path_(parent.path_ + "/" + name),
      fd_(openat(parent.fd_, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) {
  if (fd_ < 0) throw system_error("opening the folder " + path_, errno);
}

void Directory::make(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw system_error("making the folder " + path, errno);
  }
}

void Directory::make_inside(const std::string& name) const {
  if (mkdirat(fd_, name.c_str(), 0700) != 0 && errno != EEXIST) {
    throw system_error("making the folder " + path_ + "/" + name, errno);
  }
}

bool Directory::is_own() const {
  struct stat found{};
  return fstat(fd_, &found) == 0 && is_own_folder(found);
}

bool Directory::has_own_folder(const std::string& name) const {
  struct stat found{};
  return fstatat(fd_, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && is_own_folder(found);
}

std::int64_t Directory::written_ns() const {
  struct stat found{};
  return fstat(fd_, &found) == 0 ? written_ns_of(found) : 0;
}

std::vector<std::string> Directory::names() const {
  // A descriptor of its own, since reading moves its position.
  const int fd = openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const auto close_it = [](DIR* stream) { closedir(stream); };
  const std::unique_ptr<DIR, decltype(close_it)> stream(fd < 0 ? nullptr : fdopendir(fd));
  if (stream == nullptr) {
    const int error = errno;
    if (fd >= 0) close(fd);
    throw system_error("reading the folder " + path_, error);
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(stream.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  return names;
}

std::optional<Directory::File> Directory::own_file(const std::string& name) const {
  struct stat found{};
  const bool is_there = fstatat(fd_, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0;
  if (!is_there || !is_own_file(found)) return std::nullopt;
  return File{name, written_ns_of(found), static_cast<std::uint64_t>(found.st_size)};
}

std::string Directory::read_own(const std::string& name, std::size_t most_bytes) const {
  const Descriptor file(
      openat(fd_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat found{};
  if (file < 0 || fstat(file, &found) != 0 || !is_own_file(found)) return {};
  std::string text(most_bytes, '\0');
  const ssize_t count = read(file, text.data(), text.size());
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return text;
}

void Directory::touch(const std::string& name) const {
  const Descriptor file(openat(fd_, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file < 0 && errno != EEXIST) throw system_error("making " + path_ + "/" + name, errno);
}

void Directory::replace(const std::string& name,
                        std::span<const std::span<const char>> parts) const {
  const std::string path = path_ + "/" + name;
  struct stat found{};
  const bool is_there = fstatat(fd_, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0;
  if (is_there && !S_ISREG(found.st_mode)) {
    throw Error(ErrorCode::kSystem, "writing " + path + ": expected a regular file there");
  }
  const std::string draft = draft_name(name);
  const Descriptor file(openat(fd_, draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file < 0) throw system_error("opening " + path, errno);
  try {
    for (const std::span<const char> part : parts) write_all(file, part, path);
    if (renameat(fd_, draft.c_str(), fd_, name.c_str()) != 0) {
      throw system_error("writing " + path, errno);
    }
  } catch (...) {
    unlinkat(fd_, draft.c_str(), 0);
    throw;
  }
}

void Directory::remove_own(const std::string& name) const {
  if (own_file(name)) unlinkat(fd_, name.c_str(), 0);
}

void Directory::remove_folder(const std::string& name) const {
  unlinkat(fd_, name.c_str(), AT_REMOVEDIR);
}

}  // namespace hvd
