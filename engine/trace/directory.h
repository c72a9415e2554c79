// An open folder. Files are opened by name inside of it, so no link leads out of it.
//
// A folder or a file is *own* if it belongs to this user and no other user can change it. Only own
// regular files are read, replaced or removed. Opening another file never blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/descriptor.h"

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
  Directory(const Directory& parent, const std::string& name);  // refuses links

  // Makes a folder for this user only, unless the name exists. Throws Error.
  static void make(const std::string& path);
  void make_inside(const std::string& name) const;

  const std::string& path() const { return path_; }
  bool is_own() const;
  // Whether there is an own folder with this name. It is not opened, so another may replace it
  // later.
  bool has_own_folder(const std::string& name) const;
  std::int64_t written_ns() const;
  std::vector<std::string> names() const;
  // Of a regular file that belongs to this user.
  std::optional<File> own_file(const std::string& name) const;
  // The beginning of such a file; empty if there is none.
  std::string read_own(const std::string& name, std::size_t most_bytes) const;

  // Makes an empty file, unless the name exists. Throws Error.
  void touch(const std::string& name) const;
  // Writes a file, which replaces a regular file of this name in one step. Throws Error, also if
  // the name is not a regular file.
  void replace(const std::string& name, std::span<const std::span<const char>> parts) const;
  // Removes only own regular files, and only empty folders.
  void remove_own(const std::string& name) const;
  void remove_folder(const std::string& name) const;

 private:
  std::string path_;
  Descriptor fd_;
};

}  // namespace hvd
