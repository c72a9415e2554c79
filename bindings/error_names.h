// The names of engine errors in Python, for frameworks that pass on only the text of an error.
#pragma once

#include <string>

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

inline std::string text_for_python(const Error& error) {
  return python_name_of(error) + std::string(": ") + error.what();
}

// TensorFlow and XLA have the same numbers for these three (absl::StatusCode). `other`: for all
// other errors.
template <typename Code>
Code status_code_of(const Error& error, Code other) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      return static_cast<Code>(3);
    case ErrorCode::kMismatch:
      return static_cast<Code>(9);  // a precondition failed
    case ErrorCode::kAborted:
      return static_cast<Code>(10);
    default:
      return other;
  }
}

}  // namespace hvd
