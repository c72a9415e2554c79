// Messages between processes of one build, value by value.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text.h"

namespace hvd {

// Builds a message for a peer.
class WireWriter {
 public:
  template <typename Value>
  void put(const Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    put_bytes(&value, sizeof value);
  }
  // Seven bits a byte, low ones first: most numbers are small.
  void put_number(std::uint64_t number) {
    for (; number >= 0x80; number >>= 7) put(static_cast<std::uint8_t>(number | 0x80));
    put(static_cast<std::uint8_t>(number));
  }
  template <typename Value>
  void put_list(std::span<const Value> values) {
    put_number(values.size());
    put_bytes(values.data(), values.size_bytes());
  }
  void put_bytes(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    message_.insert(message_.end(), bytes, bytes + size);
  }
  std::size_t size() const { return message_.size(); }
  std::vector<std::byte> take() { return std::move(message_); }

 private:
  std::vector<std::byte> message_;
};

// Reads a message of a peer. Throws BadMessage with the field if a value is cut off or out of its
// range, or if bytes are left over at the end. No value is returned unchecked.
class WireReader {
 public:
  // `message`: its kind, for errors; both outlive this object.
  WireReader(const char* message, std::span<const std::byte> bytes)
      : message_(message), rest_(bytes) {}

  // Any bits are a valid number.
  template <typename Number>
    requires(std::integral<Number> || std::floating_point<Number>) && (!std::same_as<Number, bool>)
  Number get(const char* field) {
    Number number;
    take(field, &number, sizeof number);
    return number;
  }
  template <typename Number>
  Number get(const char* field, Number least, Number most) {
    const auto number = get<Number>(field);
    if (number < least || number > most) refuse_range(field, number, least, most);
    return number;
  }
  // Of an enumeration that numbers its values from 0 on.
  template <typename Enum>
    requires std::is_enum_v<Enum>
  Enum get_enum(const char* field, int count) {
    using Number = std::underlying_type_t<Enum>;
    return static_cast<Enum>(get<Number>(field, 0, static_cast<Number>(count - 1)));
  }
  bool get_flag(const char* field) { return get<std::uint8_t>(field, 0, 1) != 0; }
  // Seven bits a byte, low ones first.
  std::uint64_t get_number(const char* field, std::uint64_t least, std::uint64_t most) {
    std::uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = get<std::uint8_t>(field);
      const auto bits = static_cast<std::uint64_t>(byte & 0x7f);
      if (shift > 63 || (bits << shift) >> shift != bits) {
        refuse(field, "more than 64 bits", "a number of 64 bits");
      }
      number |= bits << shift;
      if (byte < 0x80) break;
    }
    if (number < least || number > most) refuse_range(field, number, least, most);
    return number;
  }
  // A list: the number of entries, then the entries.
  template <typename Number>
  std::vector<Number> get_list(const char* field, std::size_t most) {
    static_assert(std::is_arithmetic_v<Number>);
    const std::uint64_t count = get_number(field, 0, most);
    if (count > rest_.size() / sizeof(Number)) refuse_end(field, count * sizeof(Number));
    std::vector<Number> numbers(count);
    take(field, numbers.data(), count * sizeof(Number));
    return numbers;
  }
  // Text for people: see printable().
  std::string get_text(const char* field, std::size_t most) {
    const std::vector<char> text = get_list<char>(field, most);
    return printable({text.data(), text.size()});
  }
  // Text in a field of a fixed size. It ends with a zero, which must be there.
  std::string get_cells(const char* field, std::size_t size) {
    const auto cells = get_bytes(field, size);
    const auto* text = reinterpret_cast<const char*>(cells.data());
    const auto* end = static_cast<const char*>(std::memchr(text, 0, size));
    if (end == nullptr) refuse(field, "text without an end", "a zero behind the text");
    return printable({text, end});
  }
  std::span<const std::byte> get_bytes(const char* field, std::size_t size) {
    if (size > rest_.size()) refuse_end(field, size);
    const auto bytes = rest_.first(size);
    rest_ = rest_.subspan(size);
    return bytes;
  }

  bool is_empty() const { return rest_.empty(); }
  std::size_t rest_bytes() const { return rest_.size(); }
  // Nothing may be left.
  void end() const {
    if (is_empty()) return;
    refuse("length", std::to_string(rest_.size()) + " more bytes", "the end of the message");
  }
  [[noreturn]] void refuse(const char* field, std::string found, std::string expected) const {
    throw BadMessage({message_, field, std::move(found), std::move(expected)});
  }

 private:
  void take(const char* field, void* to, std::size_t size) {
    const auto bytes = get_bytes(field, size);
    if (size != 0) std::memcpy(to, bytes.data(), size);
  }
  [[noreturn]] void refuse_end(const char* field, std::size_t size) const {
    refuse(field, std::to_string(rest_.size()) + " bytes", std::to_string(size) + " bytes");
  }
  template <typename Number>
  [[noreturn]] void refuse_range(const char* field, Number found, Number least, Number most) const {
    refuse(field, std::to_string(found), std::to_string(least) + " to " + std::to_string(most));
  }

  const char* const message_;
  std::span<const std::byte> rest_;
};

}  // namespace hvd
