// One connection to a rank of another host: a stream of bytes each way.
//
// Nothing frames the bytes: both ends know how many each bucket carries in each direction. A
// collective posts, in stream order, what it sends and where it wants what comes; pump() moves what
// the socket takes and has, never blocks, and touches nothing that was not posted, so bytes of a
// bucket that this rank has not begun stay in the socket. Positions count the bytes of a stream
// since the link was made.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace hvd {

// A connected, non-blocking stream socket that leads to the owner of `channel` on another host,
// `host` being its index among the set's hosts.
struct DataLink {
  int host = 0;
  int channel = 0;
  int fd = -1;
};

// The connection to `rank` (of the set that runs the bucket) broke.
class LinkLost : public Error {
 public:
  LinkLost(int rank, std::string reason);

  int rank() const { return rank_; }
  const std::string& reason() const { return reason_; }

 private:
  int rank_;
  std::string reason_;
};

// Buffers in the order of a stream, of which the first may be moved in part.
class Posts {
 public:
  void add(std::byte* data, std::size_t size_bytes);
  bool empty() const { return parts_.size() == head_; }
  // What one system call should be offered.
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

class Link {
 public:
  // Owns `fd`. `peer`: set rank at the other end.
  Link(int fd, int peer) : fd_(fd), peer_(peer) {}
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int fd() const { return fd_; }
  int peer() const { return peer_; }
  // In a forked child, which must not keep the connection open.
  void close_copy();

  // The memory stays as it is until sends().moved() is behind it.
  void send(const std::byte* from, std::size_t size_bytes) {
    sends_.add(const_cast<std::byte*>(from), size_bytes);
  }
  void receive(std::byte* to, std::size_t size_bytes) { receives_.add(to, size_bytes); }
  const Posts& sends() const { return sends_; }
  const Posts& receives() const { return receives_; }

  // Moves posted bytes as far as the socket can; true when any moved. Throws LinkLost.
  bool pump();
  bool is_idle() const { return sends_.empty() && receives_.empty(); }

 private:
  bool pump_sends();
  bool pump_receives();

  int fd_;
  const int peer_;
  Posts sends_;
  Posts receives_;
};

}  // namespace hvd
