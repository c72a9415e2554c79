#include "transport/message_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
namespace hvd {

namespace {

constexpr std::size_t kReadBytes = 16 * 1024;
// Larger ones are a broken promise at the other end, not a message.
constexpr std::uint32_t kMaxMessageBytes = 256U << 20;

}  // namespace

MessageLink::~MessageLink() { close(); }

// With unread bytes it would reset the connection.
void MessageLink::close() {
  if (fd_ < 0) return;
  flush();
  ::shutdown(fd_, SHUT_WR);
  std::byte unread[1024];
  while (recv(fd_, unread, sizeof unread, MSG_DONTWAIT) > 0) {
  }
  ::close(std::exchange(fd_, -1));
  can_send_ = false;
  loss_ = "it is closed";
}

void MessageLink::close_copy() { ::close(std::exchange(fd_, -1)); }

MessageLink::MessageLink(MessageLink&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      rank_(other.rank_),
      unsent_(std::move(other.unsent_)),
      sent_(other.sent_),
      received_(std::move(other.received_)),
      can_send_(other.can_send_),
      loss_(std::move(other.loss_)),
      messages_sent_(other.messages_sent_),
      bytes_sent_(other.bytes_sent_) {}

void MessageLink::post(std::span<const std::byte> message) {
  if (!can_send_) return;
  const auto size = static_cast<std::uint32_t>(message.size());
  const auto* head = reinterpret_cast<const std::byte*>(&size);
  unsent_.insert(unsent_.end(), head, head + sizeof size);
  unsent_.insert(unsent_.end(), message.begin(), message.end());
  ++messages_sent_;
  flush();
}

void MessageLink::flush() {
  while (has_unsent()) {
    const ssize_t count =
        send(fd_, unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) stop_sending();
      return;
    }
    sent_ += static_cast<std::size_t>(count);
    bytes_sent_ += static_cast<std::uint64_t>(count);
  }
  unsent_.clear();
  sent_ = 0;
}

bool MessageLink::receive(const std::function<void(std::span<const std::byte>)>& use) {
  if (loss_.empty()) fill();
  bool found = false;
  std::size_t used = 0;
  for (std::uint32_t size = 0; received_.size() - used >= sizeof size;) {
    std::memcpy(&size, received_.data() + used, sizeof size);
    if (size > kMaxMessageBytes) loss_ = "it sent what is not a message";
    if (received_.size() - used - sizeof size < size) break;
    use({received_.data() + used + sizeof size, size});
    used += sizeof size + size;
    found = true;
  }
  received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(used));
  return found;
}

void MessageLink::fill() {
  for (;;) {
    const std::size_t size = received_.size();
    received_.resize(size + kReadBytes);
    const ssize_t count = recv(fd_, received_.data() + size, kReadBytes, MSG_DONTWAIT);
    const int error = errno;
    received_.resize(size + static_cast<std::size_t>(count < 0 ? 0 : count));
    if (count == 0) {
      loss_ = "it closed the connection";
      return;
    }
    if (count > 0 && static_cast<std::size_t>(count) < kReadBytes) return;
    if (count > 0 || error == EINTR) continue;
    if (error != EAGAIN && error != EWOULDBLOCK) loss_ = std::strerror(error);
    return;
  }
}

void MessageLink::stop_sending() {
  can_send_ = false;
  unsent_.clear();
  sent_ = 0;
}

void MessageLink::add_poll(std::vector<pollfd>& polls) const {
  if (!loss_.empty()) return;
  const auto events = static_cast<short>(POLLIN | (has_unsent() ? POLLOUT : 0));
  polls.push_back({.fd = fd_, .events = events, .revents = 0});
}

}  // namespace hvd
