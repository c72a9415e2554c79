// A JSON array on disk that is a valid document at any time, even if the process is killed.
//
// There are spaces between the last element and the closing bracket. New elements are written over
// these spaces. No element crosses the border of a page: the kernel writes a page completely or not
// at all. The document is invalid only between two system calls when the bracket moves, twice in a
// megabyte.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/descriptor.h"

namespace hvd {

class JsonFile {
 public:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kStep = 1024U << 10;         // the bracket moves this far
  static constexpr std::size_t kMostGathered = 256U << 10;  // fits into a processor's cache

  // Opens `path`. Overwrites an existing regular file only if it is empty, or if its first element
  // begins with `mark`. `last` is always the last element; it begins with `mark`, too. Throws
  // Error.
  JsonFile(const std::string& path, std::string_view mark, std::string_view last,
           std::size_t max_bytes);
  // Writes the gathered elements, and cuts off the spaces.
  ~JsonFile();

  // Memory for the next element, and a page more. Null if the file would become too large; then it
  // takes no more elements. May flush, so it throws the errors of flush().
  char* begin_element(std::size_t bytes);
  // The element has been written and ends before `end`; it is kept for the next flush().
  void end_element(char* end);
  // Adds a finished element.
  void add(std::string_view element);
  // Throws Error. The document on disk is valid then, too, and does not change any more.
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
  Descriptor fd_;
  std::vector<char> gathered_;
  std::size_t gathered_bytes_ = 0;
  std::size_t begin_ = 0;  // where the gathered elements will be in the file
  std::size_t end_ = 0;    // where the tail is
  bool is_full_ = false;
  bool is_broken_ = false;
};

}  // namespace hvd
