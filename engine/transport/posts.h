// The buffers that a stream sends from or receives into, in stream order, and the error of a broken
// connection.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace hvd {

// The connection to `rank` (of the set that runs the bucket) broke.
class LinkLost : public Error {
 public:
  // `is_altered`: the bytes that came are not those that were sent.
  LinkLost(int rank, std::string reason, bool is_altered = false);

  int rank() const { return rank_; }
  const std::string& reason() const { return reason_; }
  bool is_altered() const { return is_altered_; }

 private:
  int rank_;
  std::string reason_;
  bool is_altered_;
};

// Buffers in the order of a stream. A part of the first one may have moved already.
class Posts {
 public:
  void add(std::byte* data, std::size_t size_bytes);
  bool empty() const { return parts_.size() == head_; }
  // The parts for one system call.
  std::span<iovec> front();
  // `size_bytes` of them were moved.
  void take(std::size_t size_bytes);

  std::uint64_t end() const { return end_; }      // position behind all that was posted
  std::uint64_t moved() const { return moved_; }  // position of the first byte not moved

 private:
  std::vector<iovec> parts_;
  std::size_t head_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t moved_ = 0;
};

// The number of bytes in `parts`.
std::size_t bytes_of(std::span<const iovec> parts);
// The first of `parts` that hold `size_bytes` together, the last of them cut.
std::vector<iovec> first_of(std::span<const iovec> parts, std::size_t size_bytes);

// One system call that moves as many posted bytes as the non-blocking socket can. Sets `has_moved`
// when any moved. False when the next call would block. Throws LinkLost, with `peer`.
bool send_some(int fd, int peer, Posts& posts, bool& has_moved);
bool receive_some(int fd, int peer, Posts& posts, bool& has_moved);

}  // namespace hvd
