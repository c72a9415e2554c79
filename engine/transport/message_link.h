// Messages over one connected socket to a rank of another host; never blocks.
//
// A message is its length (32 bits), then its bytes. What the socket does not take at once is kept
// and sent later. Only for small messages: tensors go through links of their own.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace hvd {

class MessageLink {
 public:
  // Owns `fd`, which is non-blocking; `rank` is at its other end, for errors.
  MessageLink(int fd, int rank) : fd_(fd), rank_(rank) {}
  ~MessageLink();
  MessageLink(MessageLink&& other) noexcept;
  MessageLink& operator=(MessageLink&&) = delete;

  int rank() const { return rank_; }

  // Sends, or keeps. Throws LinkLost.
  void post(std::span<const std::byte> message);
  // Sends what was kept. False when some of it is still here. Throws LinkLost.
  bool flush();
  bool has_unsent() const { return sent_ != unsent_.size(); }
  // Calls `use` with each message that has come. True when there was one. Throws LinkLost.
  bool receive(const std::function<void(std::span<const std::byte>)>& use);
  pollfd poll_entry() const;

  std::uint64_t messages_sent() const { return messages_sent_; }
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  bool fill();

  int fd_;
  int rank_;
  std::vector<std::byte> unsent_;
  std::size_t sent_ = 0;  // of those
  std::vector<std::byte> received_;
  std::uint64_t messages_sent_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace hvd
