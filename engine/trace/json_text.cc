#include "trace/json_text.h"

#include <algorithm>
#include <cstdio>

namespace hvd {

namespace {

bool is_plain(char character) {
  return static_cast<unsigned char>(character) >= 0x20 && character != '"' && character != '\\';
}

}  // namespace

void append_json_text(std::string& to, std::string_view text) {
  to += '"';
  while (!text.empty()) {
    const auto plain =
        static_cast<std::size_t>(std::ranges::find_if_not(text, is_plain) - text.begin());
    to.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned char>(text.front()));
    to.append(escaped);
    text.remove_prefix(1);
  }
  to += '"';
}

}  // namespace hvd
