// Every rank's bytes for all ranks, over the backend that moves host tensors.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/bad_message.h"

namespace hvd {

// As many bytes from each; ends when the backend's bucket does.
class HostGather {
 public:
  void begin(Backend& host, std::span<const std::byte> own, int size);
  std::span<const std::byte> of(int rank) const;
  // What `decode` makes of it. What it finds wrong, this says from whom it is: throws BadMessage.
  template <typename Decode>
  auto read(int rank, Decode&& decode) const {
    try {
      return decode(of(rank));
    } catch (const BadMessage& bad) {
      throw bad.from(rank);
    }
  }

 private:
  Request request_;
  Work work_;
  std::vector<std::byte> own_;
  std::vector<std::byte> all_;
};

// What travels as it is, where any bits will do.
template <typename Value>
Value read_as(std::span<const std::byte> bytes) {
  Value value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace hvd
