// Text in memory of a fixed size, such as shared memory; numbers as text; text of other processes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace hvd {

// Cuts off a text that is too long. The copy always ends with a zero.
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

// "tensor 2 of 3", of a group; `index` is from 0.
std::string place_text(std::size_t index, std::size_t count);

// "[4, 8]".
std::string shape_text(std::span<const std::int64_t> dims);

// Text of another process, safe for a terminal. Bytes that are not UTF-8, and control characters
// except ends of lines, are written like "\x1b".
std::string printable(std::string_view text);

// Appends `text` to `to` as a JSON string, with its quotes.
void append_json_text(std::string& to, std::string_view text);

inline std::string json_text(std::string_view text) {
  std::string quoted;
  append_json_text(quoted, text);
  return quoted;
}

}  // namespace hvd
