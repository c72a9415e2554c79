#include "core/log.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string_view>

namespace hvd {

namespace {

std::string time_text() {
  timeval now{};
  gettimeofday(&now, nullptr);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  std::array<char, 64> text{};
  const std::size_t length = strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  std::snprintf(text.data() + length, text.size() - length,
                ".%06ld: ", static_cast<long>(now.tv_usec));
  return text.data();
}

std::string_view file_name(const char* path) {
  const std::string_view whole = path;
  const std::size_t slash = whole.rfind('/');
  return slash == std::string_view::npos ? whole : whole.substr(slash + 1);
}

}  // namespace

void log(const LogConfig& config, LogLevel level, const std::string& text,
         std::source_location where) {
  if (level < config.level) return;
  std::string line = "[";
  if (!config.hide_time) line += time_text();
  line += "TDIWEF"[static_cast<int>(level)];
  line += ' ';
  line += file_name(where.file_name());
  line += ':' + std::to_string(where.line()) + "] " + text + '\n';
  const int fd = level <= LogLevel::kInfo ? STDOUT_FILENO : STDERR_FILENO;
  // A failure here cannot be reported.
  [[maybe_unused]] const auto written = write(fd, line.data(), line.size());
}

}  // namespace hvd
