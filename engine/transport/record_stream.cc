#include "transport/record_stream.h"

#include <cstring>
#include <utility>

namespace hvd {

namespace {

std::byte* begin_of(const iovec& part) { return static_cast<std::byte*>(part.iov_base); }

}  // namespace

RecordStream::RecordStream(std::shared_ptr<LinkSeals> seals, int peer)
    : seals_(std::move(seals)), peer_(peer) {
  coming_.add(header_in_.data(), kHeaderBytes);
}

bool RecordStream::pump_sends(int fd, Posts& sends) {
  bool has_moved = false;
  while (!sends.empty()) {
    if (leaving_.empty()) cut(sends);
    while (!leaving_.empty() && send_some(fd, peer_, leaving_, has_moved)) {
    }
    if (!leaving_.empty()) break;
    sends.take(leaving_bytes_);
  }
  return has_moved;
}

void RecordStream::cut(Posts& sends) {
  const std::vector<iovec> parts = first_of(sends.front(), kRecordBytes);
  leaving_bytes_ = bytes_of(parts);
  seal_header();
  if (seals_->is_encrypting) sealed_.resize(kRecordBytes);
  std::byte* to = seals_->is_encrypting ? sealed_.data() : nullptr;
  Sealer& sealer = seals_->sealer;
  sealer.begin();
  for (const iovec& part : parts) {
    if (to == nullptr) {
      sealer.cover(begin_of(part), part.iov_len);
      leaving_.add(begin_of(part), part.iov_len);
    } else {
      sealer.encrypt(begin_of(part), to, part.iov_len);
      leaving_.add(to, part.iov_len);
      to += part.iov_len;
    }
  }
  sealer.end(tag_out_.data());
  leaving_.add(tag_out_.data(), kTagBytes);
}

void RecordStream::seal_header() {
  const auto size_bytes = static_cast<std::uint32_t>(leaving_bytes_);
  Sealer& sealer = seals_->sealer;
  sealer.begin();
  sealer.encrypt(reinterpret_cast<const std::byte*>(&size_bytes), header_out_.data(),
                 sizeof size_bytes);
  sealer.end(header_out_.data() + sizeof size_bytes);
  leaving_.add(header_out_.data(), kHeaderBytes);
}

bool RecordStream::pump_receives(int fd, Posts& receives) {
  bool has_moved = false;
  for (bool has_more = true; has_more && !receives.empty();) {
    if (!spare_.empty()) {
      hand_out(receives);
      has_moved = true;
      continue;
    }
    if (body_bytes_ != 0 && body_end_ == 0) expect_body(receives);
    has_more = receive_some(fd, peer_, coming_, has_moved);
    if (body_end_ != 0 && coming_.moved() >= body_end_) open_body(receives);
    if (body_bytes_ == 0 && coming_.empty()) open_header();
  }
  return has_moved;
}

void RecordStream::open_header() {
  std::uint32_t size_bytes = 0;
  Opener& opener = seals_->opener;
  opener.begin();
  opener.decrypt(header_in_.data(), reinterpret_cast<std::byte*>(&size_bytes), sizeof size_bytes);
  if (!opener.end(header_in_.data() + sizeof size_bytes)) lose_altered();
  if (size_bytes == 0 || size_bytes > kRecordBytes) {
    throw LinkLost(peer_, "it sent a record of " + std::to_string(size_bytes) +
                              " bytes, not of 1 to " + std::to_string(kRecordBytes));
  }
  body_bytes_ = size_bytes;
}

// Bytes that travel in the clear are received directly into posted memory, as long as its addresses
// rise. Dropped bytes are posted to the same memory again and again, but the whole record must
// still be in memory when its tag arrives.
void RecordStream::expect_body(Posts& receives) {
  buffer_.resize(kRecordBytes);
  direct_bytes_ = 0;
  if (!seals_->is_encrypting) {
    const std::byte* behind = nullptr;
    for (const iovec& part : first_of(receives.front(), body_bytes_)) {
      if (begin_of(part) < behind) break;
      coming_.add(begin_of(part), part.iov_len);
      direct_bytes_ += part.iov_len;
      behind = begin_of(part) + part.iov_len;
    }
  }
  coming_.add(buffer_.data() + direct_bytes_, body_bytes_ - direct_bytes_);
  coming_.add(tag_in_.data(), kTagBytes);
  body_end_ = coming_.end();
  coming_.add(header_in_.data(), kHeaderBytes);  // the next one's
}

void RecordStream::open_body(Posts& receives) {
  Opener& opener = seals_->opener;
  opener.begin();
  if (seals_->is_encrypting) {
    direct_bytes_ = 0;
    for (const iovec& part : first_of(receives.front(), body_bytes_)) {
      opener.decrypt(buffer_.data() + direct_bytes_, begin_of(part), part.iov_len);
      direct_bytes_ += part.iov_len;
    }
  } else {
    for (const iovec& part : first_of(receives.front(), direct_bytes_)) {
      opener.cover(begin_of(part), part.iov_len);
    }
  }
  spare_ = std::span(buffer_).subspan(direct_bytes_, body_bytes_ - direct_bytes_);
  if (!spare_.empty()) {
    opener.decrypt(spare_.data(), seals_->is_encrypting ? spare_.data() : nullptr, spare_.size());
  }
  if (!opener.end(tag_in_.data())) lose_altered();
  receives.take(direct_bytes_);
  body_bytes_ = 0;
  body_end_ = 0;
}

void RecordStream::hand_out(Posts& receives) {
  std::size_t given = 0;
  for (const iovec& part : first_of(receives.front(), spare_.size())) {
    std::memcpy(part.iov_base, spare_.data() + given, part.iov_len);
    given += part.iov_len;
  }
  receives.take(given);
  spare_ = spare_.subspan(given);
}

void RecordStream::lose_altered() const { throw LinkLost(peer_, altered_text("data link"), true); }

}  // namespace hvd
