// A JSON array on disk that is a whole document at any time, whatever ends the process.
//
// The closing bracket stands some way ahead of the last element, with spaces in between. Elements
// are written into these spaces, and none crosses the border of a page: the kernel takes a page as
// a whole or not at all. Only where the bracket moves on, once in some megabytes, lie two system
// calls with no valid document between them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

class JsonFile {
 public:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kStep = 4U << 20;  // the bracket moves this far

  // Opens `path`, over what was there. `last` is the element that comes last at any time. Throws
  // Error.
  JsonFile(const std::string& path, std::string_view last, std::size_t max_bytes);
  // Writes what is left, and cuts off the spaces.
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  // Keeps an element for the next flush(). False: the file would grow too large, nothing more is
  // taken.
  bool add(std::string_view element);
  // Throws Error; the document on disk is valid then, too, and stays as it is.
  void flush();
  bool is_full() const { return is_full_; }

 private:
  void write(std::string_view text, std::size_t at) const;
  void move_end(std::size_t wanted);
  void close_up();

  const std::string path_;
  const std::string tail_;  // the last element and the bracket
  const std::size_t max_bytes_;
  int fd_ = -1;
  std::string unwritten_;
  std::size_t begin_ = 0;  // of that, in the file
  std::size_t end_ = 0;    // where the tail stands
  bool is_full_ = false;
  bool is_broken_ = false;
};

}  // namespace hvd
