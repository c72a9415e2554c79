// How the ranks of a set exchange a few bytes and agree on how an attempt ended, over the backend
// that moves host tensors.
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/bad_message.h"
#include "gpu/gpu.h"

namespace hvd {

// The ranks of a set, as those see them who prepare its ways over GPUs.
struct DeviceGroup {
  Gpu& gpu;
  Backend& host;                   // moves host tensors of the set
  Place place;                     // of this rank
  std::vector<std::string> names;  // of the ranks
};

// An allgather of as many bytes from every rank. It ends when the backend's bucket does.
class HostAllgather {
 public:
  void begin(Backend& host, std::span<const std::byte> own, int size);
  std::span<const std::byte> of(int rank) const;
  // What `decode` makes of a rank's bytes. A BadMessage from it gets the rank that sent the bytes.
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

// A value that travels as it lies in memory, where any bits are valid.
template <typename Value>
Value read_as(std::span<const std::byte> bytes) {
  Value value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// The status of every rank at the end of an attempt, with bytes that the rank adds to it.
class StatusAgreement {
 public:
  // `problem`: of this rank; empty: none. `added`: as many bytes from each rank. Ends when the
  // backend's bucket does.
  void send(Backend& host, const std::string& problem, int size,
            std::span<const std::byte> added = {});
  // The first problem, with the name of its rank; none if no rank had one. Throws BadMessage.
  std::optional<std::string> obstacle(const std::vector<std::string>& names) const;
  std::span<const std::byte> added_by(int rank) const;
  // Reads the status at the start of a rank's bytes. Throws BadMessage.
  static std::string read_problem(std::span<const std::byte> bytes);

 private:
  static constexpr std::size_t kProblemBytes = 256;  // of which the last is a zero

  HostAllgather statuses_;
};

}  // namespace hvd
