// The one error type of the engine: a code that Python maps to an exception, a full sentence for
// people, and for programs what it is about. No code reads the sentence.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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

// What an error is about; empty where that is not known.
struct Subject {
  std::vector<int>
      ranks;              // of the world, rising: dead, silent or out of reach; none that shut down
  std::string host;       // the one host of all of them
  std::string operation;  // "allreduce 'x'"
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text, Subject subject = {})
      : std::runtime_error(text), code_(code), subject_(std::move(subject)) {}
  ErrorCode code() const { return code_; }
  const Subject& subject() const { return subject_; }
  // The same as the failure of `operation`, which comes first in the text.
  Error of(const std::string& operation) const;

 private:
  ErrorCode code_;
  Subject subject_;
};

// An Error with code kSystem: what was attempted, then errno's text.
[[nodiscard]] Error system_error(const std::string& attempt, int error_number);

}  // namespace hvd
