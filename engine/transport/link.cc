#include "transport/link.h"

#include <sys/socket.h>
#include <unistd.h>

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

std::size_t bytes_of(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

msghdr message_of(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

LinkLost::LinkLost(int rank, std::string reason)
    : Error(ErrorCode::kPeerLost,
            "the connection to rank " + std::to_string(rank) + " is lost: " + reason),
      rank_(rank),
      reason_(std::move(reason)) {}

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

Link::~Link() { close_copy(); }

void Link::close_copy() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

bool Link::pump() {
  const bool has_sent = pump_sends();  // first, since others wait for it
  return pump_receives() || has_sent;
}

bool Link::pump_sends() {
  bool has_moved = false;
  while (!sends_.empty()) {
    const std::span<iovec> parts = sends_.front();
    const std::size_t offered = bytes_of(parts);
    const msghdr message = message_of(parts);
    const ssize_t sent = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (would_block(errno)) break;
      throw LinkLost(peer_, std::generic_category().message(errno));
    }
    sends_.take(static_cast<std::size_t>(sent));
    has_moved = true;
    if (static_cast<std::size_t>(sent) < offered) break;
  }
  return has_moved;
}

bool Link::pump_receives() {
  bool has_moved = false;
  while (!receives_.empty()) {
    const std::span<iovec> parts = receives_.front();
    const std::size_t offered = bytes_of(parts);
    msghdr message = message_of(parts);
    const ssize_t received = recvmsg(fd_, &message, MSG_DONTWAIT);
    if (received == 0) throw LinkLost(peer_, "it was closed at the other end");
    if (received < 0) {
      if (would_block(errno)) break;
      throw LinkLost(peer_, std::generic_category().message(errno));
    }
    receives_.take(static_cast<std::size_t>(received));
    has_moved = true;
    if (static_cast<std::size_t>(received) < offered) break;
  }
  return has_moved;
}

}  // namespace hvd
