// Messages to people, one line each, in upstream's format: [time: L file:line] text.
//
// Up to info they go to standard output, above to standard error. Writing is one write(2) per line,
// so lines of several threads and processes do not mix.
#pragma once

#include <source_location>
#include <string>

namespace hvd {

enum class LogLevel : int {
  kTrace = 0,
  kDebug = 1,
  kInfo = 2,
  kWarning = 3,
  kError = 4,
  kFatal = 5
};

struct LogConfig {
  LogLevel level = LogLevel::kWarning;
  bool hide_time = false;
};

void log(const LogConfig& config, LogLevel level, const std::string& text,
         std::source_location where = std::source_location::current());

}  // namespace hvd
