// The bytes of a data link as sealed records. Without seals, Link moves the bytes as they are.
//
// A record is a sealed header with its length, then so many bytes of the stream, then a tag. It is
// cut from the posted bytes when the record before it has left. The header is sealed by itself, so
// that no length is used before it has been verified. The bytes of a record count as moved when the
// whole record has left, or has arrived and been opened. Bytes that arrive before memory is posted
// for them wait in a buffer of one record.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "transport/posts.h"
#include "transport/seal.h"

namespace hvd {

// The most bytes of a stream in one record. A record and its copy fit into a core's cache.
inline constexpr std::size_t kRecordBytes = 128 * 1024;

class RecordStream {
 public:
  // `peer`: set rank at the other end.
  RecordStream(std::shared_ptr<LinkSeals> seals, int peer);

  // As Link::pump, for one direction each. Throws LinkLost.
  bool pump_sends(int fd, Posts& sends);
  bool pump_receives(int fd, Posts& receives);

 private:
  static constexpr std::size_t kHeaderBytes = sizeof(std::uint32_t) + kTagBytes;

  void cut(Posts& sends);
  void seal_header();
  void open_header();
  void expect_body(Posts& receives);
  void open_body(Posts& receives);
  void hand_out(Posts& receives);
  [[noreturn]] void lose_altered() const;

  const std::shared_ptr<LinkSeals> seals_;
  const int peer_;

  // The record that is leaving.
  Posts leaving_;
  std::size_t leaving_bytes_ = 0;  // of the stream
  std::array<std::byte, kHeaderBytes> header_out_{};
  Tag tag_out_{};
  std::vector<std::byte> sealed_;  // encrypted bytes

  // The record that is coming.
  Posts coming_;
  std::array<std::byte, kHeaderBytes> header_in_{};
  Tag tag_in_{};
  std::size_t body_bytes_ = 0;     // of the stream; 0: its header has not come
  std::uint64_t body_end_ = 0;     // in `coming_`, behind its tag; 0: not expected yet
  std::size_t direct_bytes_ = 0;   // of the body, that are received directly into posted memory
  std::vector<std::byte> buffer_;  // of kRecordBytes, for the other bytes
  std::span<std::byte> spare_;     // in the buffer: bytes that are opened, and not posted for yet
};

}  // namespace hvd
