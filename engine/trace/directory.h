// A folder that is held open: files are opened by name inside of it, so no link leads out.
//
// A folder or a file is *own* if it belongs to this user and no other user can change it. Only
// own regular files are read, replaced or removed; other files are never waited for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hvd {

class Directory {
 public:
  struct File {
    std::string name;
    std::int64_t written_ns = 0;  // since 1970
    std::uint64_t size_bytes = 0;
  };

  enum class Links { kFollow, kRefuse };

  // Throws Error.
  Directory(const std::string& path, Links links);
  Directory(const Directory& parent, const std::string& name);  // no link
  Directory(Directory&& other) noexcept;
  ~Directory();
  Directory& operator=(const Directory&) = delete;

  // Makes one for this user alone, unless there is something of this name. Throws Error.
  static void make(const std::string& path);
  void make_inside(const std::string& name) const;

  const std::string& path() const { return path_; }
  bool is_own() const;
  // Whether there is a folder of this name that is own; it is not opened, and may be another soon.
  bool has_own_folder(const std::string& name) const;
  std::int64_t written_ns() const;
  std::vector<std::string> names() const;
  // Of a regular file that belongs to this user.
  std::optional<File> own_file(const std::string& name) const;
  // The beginning of such a file; empty if there is none.
  std::string read_own(const std::string& name, std::size_t most_bytes) const;

  // Makes an empty file, unless there is something of this name. Throws Error.
  void touch(const std::string& name) const;
  // Puts a file in place of what is there, at once, if that is a regular file or nothing. Throws
  // Error.
  void replace(const std::string& name, std::span<const std::span<const char>> parts) const;
  // Keeps what is not own, not a regular file, or not an empty folder.
  void remove_own(const std::string& name) const;
  void remove_folder(const std::string& name) const;

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace hvd
