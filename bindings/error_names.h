// What engine errors are called in Python, for frameworks that keep nothing but a text.
#pragma once

#include "core/error.h"

namespace hvd {

inline const char* python_name_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      return "ValueError";
    case ErrorCode::kMismatch:
      return "HorovodInternalError (MismatchError)";
    case ErrorCode::kPeerLost:
      return "HorovodInternalError (PeerLostError)";
    case ErrorCode::kTimeout:
      return "HorovodInternalError (StallError)";
    case ErrorCode::kAborted:
      return "HorovodInternalError (ShutdownError)";
    default:
      return "HorovodInternalError";
  }
}

}  // namespace hvd
