#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace hvd::test {

// What goes to standard error while it lives.
class CaughtErrors {
 public:
  CaughtErrors() { dup2(fileno(file_), STDERR_FILENO); }
  ~CaughtErrors() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    std::fclose(file_);
  }
  CaughtErrors(const CaughtErrors&) = delete;
  CaughtErrors& operator=(const CaughtErrors&) = delete;

  int count(const std::string& text) const {
    std::string all(static_cast<std::size_t>(lseek(fileno(file_), 0, SEEK_END)), '\0');
    REQUIRE(pread(fileno(file_), all.data(), all.size(), 0) == static_cast<ssize_t>(all.size()));
    int found = 0;
    for (std::size_t at = 0; (at = all.find(text, at)) != std::string::npos; ++at) ++found;
    return found;
  }

 private:
  const int before_ = dup(STDERR_FILENO);
  std::FILE* const file_ = std::tmpfile();
};

}  // namespace hvd::test
