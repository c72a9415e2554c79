#include "core/text.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace hvd {

namespace {

// Bytes of the character that the text begins with; 0 where that is not UTF-8 (RFC 3629).
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return 1;
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const bool is_overlong = (lead == 0xe0 && at(1) < 0xa0) || (lead == 0xf0 && at(1) < 0x90);
  const bool is_no_character = (lead == 0xed && at(1) > 0x9f) || (lead == 0xf4 && at(1) > 0x8f);
  return is_overlong || is_no_character ? 0 : size;
}

// Characters of C0 except the end of a line, DEL, and characters of C1, which are two bytes in
// UTF-8.
bool is_control(std::string_view character) {
  const auto first = static_cast<std::uint8_t>(character[0]);
  if (character.size() == 1) return (first < 0x20 && first != '\n') || first == 0x7f;
  return first == 0xc2 && static_cast<std::uint8_t>(character[1]) < 0xa0;
}

bool is_plain(char character) {
  return static_cast<unsigned char>(character) >= 0x20 && character != '"' && character != '\\';
}

}  // namespace

std::string place_text(std::size_t index, std::size_t count) {
  return "tensor " + std::to_string(index + 1) + " of " + std::to_string(count);
}

std::string shape_text(std::span<const std::int64_t> dims) {
  std::string text = "[";
  for (const std::int64_t dim : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

std::string printable(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string plain;
  plain.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = character_bytes(text);
    const std::string_view character = text.substr(0, size == 0 ? 1 : size);
    text.remove_prefix(character.size());
    if (size != 0 && !is_control(character)) {
      plain += character;
      continue;
    }
    for (const char byte : character) {
      const auto value = static_cast<std::uint8_t>(byte);
      plain += {'\\', 'x', digits[value >> 4U], digits[value & 15U]};
    }
  }
  return plain;
}

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
