// The one error type of the engine: a code that Python maps to an exception, and a full sentence.
#pragma once

#include <stdexcept>
#include <string>

namespace hvd {

// The numbers are those of horovod.errors.ErrorCode.
enum class ErrorCode : int {
  kInvalidArgument = 1,  // this rank's call cannot be right, whatever the others do
  kMismatch = 2,         // ranks disagree
  kPeerLost = 3,         // a rank died or left
  kTimeout = 4,          // a rank did not submit in time
  kAborted = 5,          // this rank shut down
  kSystem = 6,           // the operating system refused
  kInternal = 7,         // a broken promise inside the engine
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// An Error with code kSystem: what was attempted, then errno's text.
[[nodiscard]] Error system_error(const std::string& attempt, int error_number);

}  // namespace hvd
