// Text as JSON has it.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// Appends `text` between quotes to `to`.
void append_json_text(std::string& to, std::string_view text);

inline std::string json_text(std::string_view text) {
  std::string quoted;
  append_json_text(quoted, text);
  return quoted;
}

}  // namespace hvd
