// Messages over one connected socket to a rank of another host; never blocks.
//
// A message is a sealed record of a fixed size, which has the message's length and its first bytes.
// A longer message has a second record with the rest. So no length is used before its record has
// been verified, and a message of the steady state is one record. Bytes that the socket does not
// take at once are kept and sent later. The links are for small messages: tensors have other links.
// A broken link only reports the reason: the other end may have left after all work was done. If
// records were altered on their way, the link `is_altered`. A rank that just left cannot cause
// that.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/descriptor.h"
#include "transport/seal.h"

namespace hvd {

class MessageLink {
 public:
  // Owns `fd`, which is non-blocking. `rank`: at its other end. `name`: of the link, for errors,
  // such as "control link".
  MessageLink(int fd, int rank, std::shared_ptr<LinkSeals> seals, std::string_view name);
  ~MessageLink();
  MessageLink(MessageLink&& other) noexcept = default;
  MessageLink& operator=(MessageLink&&) = delete;

  int rank() const { return rank_; }
  int descriptor() const { return fd_; }

  // Sends a message, or keeps the part that the socket does not take.
  void post(std::span<const std::byte> message);
  // Sends kept bytes, as many as the socket takes.
  void flush();
  std::size_t unsent_bytes() const { return unsent_.size() - sent_; }
  bool has_unsent() const { return sent_ != unsent_.size(); }
  // Calls `use` with each message that has come. True when there was one.
  bool receive(const std::function<void(std::span<const std::byte>)>& use);
  // Why no more messages will come; empty while they may. A link that cannot send any more may
  // still have messages to read.
  const std::string& loss() const { return loss_; }
  bool is_altered() const { return is_altered_; }
  // Adds what ends a wait for this link.
  void add_poll(std::vector<pollfd>& polls) const;

  // Sends what it can, and ends the connection. Sent messages arrive.
  void close();
  // In a forked child, which must not keep the connection open; the parent's goes on.
  void close_copy() { fd_.close(); }

  std::uint64_t messages_sent() const { return messages_sent_; }
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  void seal(std::span<const std::byte> bytes);
  bool open(std::size_t size_bytes, std::byte* to);
  bool open_next(std::span<const std::byte>& message);
  void fill();
  void stop_sending();

  Descriptor fd_;
  int rank_;
  std::shared_ptr<LinkSeals> seals_;
  std::string_view name_;
  std::vector<std::byte> unsent_;
  std::size_t sent_ = 0;  // bytes of unsent_ that were sent
  std::vector<std::byte> received_;
  std::size_t opened_ = 0;          // bytes of received_ that were opened
  std::vector<std::byte> message_;  // the message that is arriving
  std::size_t message_bytes_ = 0;   // its whole length
  bool is_in_message_ = false;      // its first record has come
  bool can_send_ = true;
  bool is_altered_ = false;
  std::string loss_;
  std::uint64_t messages_sent_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace hvd
