// A connection to a rank of another host has ended while it was needed.
#pragma once

#include <string>

#include "core/error.h"

namespace hvd {

class LinkLost : public Error {
 public:
  // `rank`: at the other end. Whoever knows its name and host makes the message.
  LinkLost(int rank, const std::string& reason)
      : Error(ErrorCode::kPeerLost, reason), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

}  // namespace hvd
