// Messages over one connected socket to a rank of another host; never blocks.
//
// A message is a sealed record of a fixed size, with the message's length and its first bytes, and
// where it has more of them a second record. So no length is used before its record has been
// verified, and a message of the steady state is one record. What the socket does not take at once
// is kept and sent later. Only for small messages: tensors have links of their own. A broken link
// says why and does nothing more: the other end may have left when all was done. A link whose
// records were altered on their way `is_altered`: a rank that just left cannot cause that.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/seal.h"

namespace hvd {

class MessageLink {
 public:
  // Owns `fd`, which is non-blocking; `rank` is at its other end, and `name` is the link's, for
  // errors: "control link".
  MessageLink(int fd, int rank, std::shared_ptr<LinkSeals> seals, std::string_view name);
  ~MessageLink();
  MessageLink(MessageLink&& other) noexcept;
  MessageLink& operator=(MessageLink&&) = delete;

  int rank() const { return rank_; }
  int descriptor() const { return fd_; }

  // Sends, or keeps.
  void post(std::span<const std::byte> message);
  // Sends what was kept, as far as the socket takes it.
  void flush();
  std::size_t unsent_bytes() const { return unsent_.size() - sent_; }
  bool has_unsent() const { return sent_ != unsent_.size(); }
  // Calls `use` with each message that has come. True when there was one.
  bool receive(const std::function<void(std::span<const std::byte>)>& use);
  // Why nothing more will come; empty while something may. A link that cannot send any more may
  // still have messages to read.
  const std::string& loss() const { return loss_; }
  bool is_altered() const { return is_altered_; }
  // Adds what ends a wait for this link.
  void add_poll(std::vector<pollfd>& polls) const;

  // Sends what it can, and ends the connection: what was sent arrives.
  void close();
  // In a forked child, which must not keep the connection open; the parent's goes on.
  void close_copy();

  std::uint64_t messages_sent() const { return messages_sent_; }
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  void seal(std::span<const std::byte> bytes);
  bool open(std::size_t size_bytes, std::byte* to);
  bool open_next(std::span<const std::byte>& message);
  void fill();
  void stop_sending();

  int fd_;
  int rank_;
  std::shared_ptr<LinkSeals> seals_;
  std::string_view name_;
  std::vector<std::byte> unsent_;
  std::size_t sent_ = 0;  // of those
  std::vector<std::byte> received_;
  std::size_t opened_ = 0;          // of those
  std::vector<std::byte> message_;  // that is coming
  std::size_t message_bytes_ = 0;   // of it, all in all
  bool is_in_message_ = false;      // its first record has come
  bool can_send_ = true;
  bool is_altered_ = false;
  std::string loss_;
  std::uint64_t messages_sent_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace hvd
