// A JSON array on disk that is a whole document at any time, however the process ends.
//
// The closing bracket stands some way ahead of the last element, with spaces in between. Elements
// are written into these spaces, and none crosses the border of a page: the kernel takes a page as
// a whole or not at all. The document is invalid only between two system calls when the bracket
// moves on, twice in a megabyte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

class JsonFile {
 public:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kStep = 1024U << 10;         // the bracket moves this far
  static constexpr std::size_t kMostGathered = 256U << 10;  // what stays in a processor's cache

  // Opens `path`, over what was there, if that is a regular file that is empty or one of these:
  // whose first element begins with `mark`. `last`, which does, too, is the element that comes last
  // at any time. Throws Error.
  JsonFile(const std::string& path, std::string_view mark, std::string_view last,
           std::size_t max_bytes);
  // Writes what is left, and cuts off the spaces.
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  // Memory for the next element, and a page more; null where the file would grow too large: nothing
  // is taken from then on. Writes what has gathered, so it throws as flush() does.
  char* begin_element(std::size_t bytes);
  // The element has been written and ends before `end`; it is kept for the next flush().
  void end_element(char* end);
  // Adds a finished element.
  void add(std::string_view element);
  // Throws Error; the document on disk is valid then, too, and stays as it is.
  void flush();
  bool is_full() const { return is_full_; }

 private:
  void write(std::string_view text, std::size_t at) const;
  void write_spaces(std::size_t from, std::size_t end) const;
  void move_end(std::size_t wanted);
  void close_up();

  const std::string path_;
  const std::string tail_;  // the last element and the bracket
  const std::size_t max_bytes_;
  int fd_ = -1;
  std::vector<char> gathered_;
  std::size_t gathered_bytes_ = 0;
  std::size_t begin_ = 0;  // of these, in the file
  std::size_t end_ = 0;    // where the tail stands
  bool is_full_ = false;
  bool is_broken_ = false;
};

}  // namespace hvd
