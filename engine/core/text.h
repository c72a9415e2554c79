// Text in memory of a fixed size, as it lies in shared memory, numbers as text, and text of others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace hvd {

// Cut off where it does not fit; always ends with a zero.
template <std::size_t capacity>
void copy_text(char (&to)[capacity], const std::string& text) {
  const std::size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

inline std::string seconds_text(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

// "[4, 8]".
std::string shape_text(std::span<const std::int64_t> dims);

// Text of another process, fit for a terminal: bytes that are not UTF-8, and control characters but
// for ends of lines, as "\x1b".
std::string printable(std::string_view text);

}  // namespace hvd
