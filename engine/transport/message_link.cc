#include "transport/message_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hvd {

namespace {

constexpr std::size_t kReadBytes = 16 * 1024;
// So much is read before a record is opened. The rest stays in the socket.
constexpr std::size_t kReadAtOnce = 1U << 20;
// A larger length means that the other end is faulty.
constexpr std::uint32_t kMaxMessageBytes = 256U << 20;
// Bytes of a message in its first record, after the length.
constexpr std::size_t kFirstBytes = 28;

struct First {
  std::uint32_t size_bytes;
  std::byte bytes[kFirstBytes];
};

}  // namespace

MessageLink::MessageLink(int fd, int rank, std::shared_ptr<LinkSeals> seals, std::string_view name)
    : fd_(fd), rank_(rank), seals_(std::move(seals)), name_(name) {}

MessageLink::~MessageLink() { close(); }

// Reads what has come first: with unread bytes close(2) would reset the connection.
void MessageLink::close() {
  if (fd_ < 0) return;
  flush();
  ::shutdown(fd_, SHUT_WR);
  std::byte unread[1024];
  while (recv(fd_, unread, sizeof unread, MSG_DONTWAIT) > 0) {
  }
  fd_.close();
  can_send_ = false;
  loss_ = "it is closed";
}

void MessageLink::post(std::span<const std::byte> message) {
  if (!can_send_) return;
  const auto front = message.first(std::min(message.size(), kFirstBytes));
  First first{.size_bytes = static_cast<std::uint32_t>(message.size()), .bytes = {}};
  std::ranges::copy(front, first.bytes);
  seal(std::as_bytes(std::span(&first, 1)));
  if (front.size() < message.size()) seal(message.subspan(front.size()));
  ++messages_sent_;
  flush();
}

void MessageLink::seal(std::span<const std::byte> bytes) {
  const std::size_t at = unsent_.size();
  unsent_.resize(at + bytes.size() + kTagBytes);
  seals_->sealer.begin();
  seals_->sealer.encrypt(bytes.data(), unsent_.data() + at, bytes.size());
  seals_->sealer.end(unsent_.data() + at + bytes.size());
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
  for (std::span<const std::byte> message; !is_altered_ && open_next(message);) {
    use(message);
    found = true;
  }
  received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(opened_));
  opened_ = 0;
  return found;
}

// True when a whole message has come.
bool MessageLink::open_next(std::span<const std::byte>& message) {
  if (!is_in_message_) {
    First first;
    if (!open(sizeof first, reinterpret_cast<std::byte*>(&first))) return false;
    if (first.size_bytes > kMaxMessageBytes) {
      loss_ = "it sent a message of " + std::to_string(first.size_bytes) + " bytes on the " +
              std::string(name_);
      is_altered_ = true;
      return false;
    }
    message_bytes_ = first.size_bytes;
    message_.assign(first.bytes, first.bytes + std::min<std::size_t>(message_bytes_, kFirstBytes));
    is_in_message_ = true;
  }
  if (const std::size_t rest = message_bytes_ - message_.size(); rest != 0) {
    if (received_.size() - opened_ < rest + kTagBytes) return false;
    const std::size_t at = message_.size();
    message_.resize(message_bytes_);
    if (!open(rest, message_.data() + at)) return false;
  }
  is_in_message_ = false;
  message = message_;
  return true;
}

// True when a record has come, and is what was sent.
bool MessageLink::open(std::size_t size_bytes, std::byte* to) {
  if (received_.size() - opened_ < size_bytes + kTagBytes) return false;
  const std::byte* const record = received_.data() + opened_;
  opened_ += size_bytes + kTagBytes;
  seals_->opener.begin();
  seals_->opener.decrypt(record, to, size_bytes);
  if (seals_->opener.end(record + size_bytes)) return true;
  is_altered_ = true;
  loss_ = altered_text(name_);
  return false;
}

void MessageLink::fill() {
  for (const std::size_t begin = received_.size(); received_.size() - begin < kReadAtOnce;) {
    const std::size_t size = received_.size();
    received_.resize(size + kReadBytes);
    const ssize_t count = recv(fd_, received_.data() + size, kReadBytes, MSG_DONTWAIT);
    const int error = errno;
    received_.resize(size + static_cast<std::size_t>(count < 0 ? 0 : count));
    if (count == 0) {
      const bool is_whole = received_.empty() && !is_in_message_;
      loss_ = is_whole ? "it closed the connection" : "it closed the connection within a message";
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
