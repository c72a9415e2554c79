// One connection to a rank of another host: a stream of bytes each way.
//
// The stream has no frames: both ends know how many bytes each bucket carries in each direction. A
// collective posts, in stream order, the bytes that it sends and the memory for the bytes that it
// receives. pump() moves as many posted bytes as the socket can and never blocks. Bytes of a bucket
// that this rank has not begun stay in the socket. Positions count the bytes of a stream since the
// link was made. With seals the bytes travel in records (transport/record_stream.h), which only
// this link sees.
#pragma once

#include <cstddef>
#include <memory>

#include "core/descriptor.h"
#include "transport/posts.h"
#include "transport/record_stream.h"

namespace hvd {

// A connected, non-blocking stream socket that leads to the owner of `channel` on another host,
// `host` being its index among the set's hosts.
struct DataLink {
  int host = 0;
  int channel = 0;
  int fd = -1;
  std::shared_ptr<LinkSeals> seals = nullptr;  // null: tensors travel as they are
};

class Link {
 public:
  // Owns `fd`. `peer`: set rank at the other end. `seals`: null for none.
  Link(int fd, int peer, std::shared_ptr<LinkSeals> seals = nullptr);

  int fd() const { return fd_; }
  int peer() const { return peer_; }
  // In a forked child, which must not keep the connection open.
  void close_copy() { fd_.close(); }

  // The memory must not change until sends().moved() has passed it.
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

  Descriptor fd_;
  const int peer_;
  Posts sends_;
  Posts receives_;
  const std::unique_ptr<RecordStream> records_;
};

}  // namespace hvd
