// Text in memory of a fixed size, as it lies in shared memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

namespace hvd {

// Cut off where it does not fit; always ends with a zero.
template <std::size_t capacity>
void copy_text(char (&to)[capacity], const std::string& text) {
  const std::size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

}  // namespace hvd
