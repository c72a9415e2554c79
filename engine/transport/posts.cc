#include "transport/posts.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace hvd {

namespace {

constexpr std::size_t kPartsPerCall = 256;
constexpr std::size_t kForgetParts = 4096;  // moved parts that a busy queue keeps at most

bool would_block(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR;
}

msghdr message_of(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

LinkLost::LinkLost(int rank, std::string reason, bool is_altered)
    : Error(ErrorCode::kPeerLost,
            "the connection to rank " + std::to_string(rank) + " is lost: " + reason),
      rank_(rank),
      reason_(std::move(reason)),
      is_altered_(is_altered) {}

void Posts::add(std::byte* data, std::size_t size_bytes) {
  if (size_bytes == 0) return;
  end_ += size_bytes;
  if (!empty()) {
    iovec& last = parts_.back();
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
      last.iov_len += size_bytes;
      return;
    }
  }
  parts_.push_back({.iov_base = data, .iov_len = size_bytes});
}

std::span<iovec> Posts::front() {
  return std::span(parts_).subspan(head_, std::min(parts_.size() - head_, kPartsPerCall));
}

void Posts::take(std::size_t size_bytes) {
  moved_ += size_bytes;
  while (size_bytes != 0) {
    iovec& part = parts_[head_];
    const std::size_t length = std::min(part.iov_len, size_bytes);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + length;
    part.iov_len -= length;
    size_bytes -= length;
    if (part.iov_len == 0) ++head_;
  }
  if (!empty() && head_ < kForgetParts) return;
  parts_.erase(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(head_));
  head_ = 0;
}

std::size_t bytes_of(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

std::vector<iovec> first_of(std::span<const iovec> parts, std::size_t size_bytes) {
  std::vector<iovec> first;
  for (const iovec& part : parts) {
    if (size_bytes == 0) break;
    const std::size_t length = std::min(part.iov_len, size_bytes);
    first.push_back({.iov_base = part.iov_base, .iov_len = length});
    size_bytes -= length;
  }
  return first;
}

bool send_some(int fd, int peer, Posts& posts, bool& has_moved) {
  const std::span<iovec> parts = posts.front();
  const std::size_t offered = bytes_of(parts);
  const msghdr message = message_of(parts);
  const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    if (would_block(errno)) return false;
    throw LinkLost(peer, std::generic_category().message(errno));
  }
  posts.take(static_cast<std::size_t>(sent));
  has_moved = true;
  return static_cast<std::size_t>(sent) == offered;
}

bool receive_some(int fd, int peer, Posts& posts, bool& has_moved) {
  const std::span<iovec> parts = posts.front();
  const std::size_t offered = bytes_of(parts);
  msghdr message = message_of(parts);
  const ssize_t received = recvmsg(fd, &message, MSG_DONTWAIT);
  if (received == 0) throw LinkLost(peer, "it was closed at the other end");
  if (received < 0) {
    if (would_block(errno)) return false;
    throw LinkLost(peer, std::generic_category().message(errno));
  }
  posts.take(static_cast<std::size_t>(received));
  has_moved = true;
  return static_cast<std::size_t>(received) == offered;
}

}  // namespace hvd
