// Puts a message for a peer together, value by value; WireReader takes it apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace hvd {

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

}  // namespace hvd
