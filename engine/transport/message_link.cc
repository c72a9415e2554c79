#include "transport/message_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/link_lost.h"

namespace hvd {

namespace {

constexpr std::size_t kReadBytes = 16 * 1024;
// Larger ones are a broken promise at the other end, not a message.
constexpr std::uint32_t kMaxMessageBytes = 256U << 20;

}  // namespace

MessageLink::~MessageLink() {
  if (fd_ >= 0) close(fd_);
}

MessageLink::MessageLink(MessageLink&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      rank_(other.rank_),
      unsent_(std::move(other.unsent_)),
      sent_(other.sent_),
      received_(std::move(other.received_)),
      messages_sent_(other.messages_sent_),
      bytes_sent_(other.bytes_sent_) {}

void MessageLink::post(std::span<const std::byte> message) {
  const auto size = static_cast<std::uint32_t>(message.size());
  const auto* head = reinterpret_cast<const std::byte*>(&size);
  unsent_.insert(unsent_.end(), head, head + sizeof size);
  unsent_.insert(unsent_.end(), message.begin(), message.end());
  ++messages_sent_;
  flush();
}

bool MessageLink::flush() {
  while (has_unsent()) {
    const ssize_t count =
        send(fd_, unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      throw LinkLost(rank_, std::strerror(errno));
    }
    sent_ += static_cast<std::size_t>(count);
    bytes_sent_ += static_cast<std::uint64_t>(count);
  }
  unsent_.clear();
  sent_ = 0;
  return true;
}

bool MessageLink::receive(const std::function<void(std::span<const std::byte>)>& use) {
  bool found = false;
  std::size_t used = 0;
  const bool is_open = fill();
  for (std::uint32_t size = 0; received_.size() - used >= sizeof size;) {
    std::memcpy(&size, received_.data() + used, sizeof size);
    if (size > kMaxMessageBytes) throw LinkLost(rank_, "it sent what is not a message");
    if (received_.size() - used - sizeof size < size) break;
    use({received_.data() + used + sizeof size, size});
    used += sizeof size + size;
    found = true;
  }
  received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(used));
  if (!is_open && !found) throw LinkLost(rank_, "it closed the connection");
  return found;
}

// False when the other end has closed.
bool MessageLink::fill() {
  for (;;) {
    const std::size_t size = received_.size();
    received_.resize(size + kReadBytes);
    const ssize_t count = recv(fd_, received_.data() + size, kReadBytes, MSG_DONTWAIT);
    const int error = errno;
    received_.resize(size + static_cast<std::size_t>(count < 0 ? 0 : count));
    if (count == 0) return false;
    if (count > 0 && static_cast<std::size_t>(count) < kReadBytes) return true;
    if (count > 0 || error == EINTR) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) return true;
    throw LinkLost(rank_, std::strerror(error));
  }
}

pollfd MessageLink::poll_entry() const {
  const short events = static_cast<short>(POLLIN | (has_unsent() ? POLLOUT : 0));
  return {.fd = fd_, .events = events, .revents = 0};
}

}  // namespace hvd
