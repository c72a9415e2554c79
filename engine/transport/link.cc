#include "transport/link.h"

#include <utility>

namespace hvd {

Link::Link(int fd, int peer, std::shared_ptr<LinkSeals> seals)
    : fd_(fd),
      peer_(peer),
      records_(seals == nullptr ? nullptr
                                : std::make_unique<RecordStream>(std::move(seals), peer)) {}

bool Link::pump() {
  const bool has_sent = pump_sends();  // first, since others wait for it
  return pump_receives() || has_sent;
}

bool Link::pump_sends() {
  if (records_ != nullptr) return records_->pump_sends(fd_, sends_);
  bool has_moved = false;
  while (!sends_.empty() && send_some(fd_, peer_, sends_, has_moved)) {
  }
  return has_moved;
}

bool Link::pump_receives() {
  if (records_ != nullptr) return records_->pump_receives(fd_, receives_);
  bool has_moved = false;
  while (!receives_.empty() && receive_some(fd_, peer_, receives_, has_moved)) {
  }
  return has_moved;
}

}  // namespace hvd
