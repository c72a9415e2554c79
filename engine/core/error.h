// The one error type of the engine. It has a code that Python maps to an exception, a full sentence
// for people, and for programs the subject of the error. No code reads the sentence.
#pragma once

#include <exception>
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
  // World ranks that are dead, silent or out of reach, rising. Ranks that shut down are not
  // included.
  std::vector<int> ranks;
  std::string host;       // of all these ranks; empty if they are on several hosts
  std::string operation;  // "allreduce 'x'"
};

// Not a std::runtime_error: in wheels each plugin has a libstdc++ of its own, and one of them
// cannot free a std::runtime_error that another one has moved from.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string text, Subject subject = {})
      : code_(code), text_(std::move(text)), subject_(std::move(subject)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  ErrorCode code() const { return code_; }
  const Subject& subject() const { return subject_; }
  // The same error as the failure of `operation`. The text begins with the operation.
  Error of(const std::string& operation) const;

 private:
  ErrorCode code_;
  std::string text_;
  Subject subject_;
};

// A library has lost a rank and does not say which one. Who watches the ranks may know soon.
class UnnamedLoss : public Error {
 public:
  explicit UnnamedLoss(const std::string& text) : Error(ErrorCode::kPeerLost, text) {}
};

// An Error with code kSystem: what was attempted, then errno's text.
[[nodiscard]] Error system_error(const std::string& attempt, int error_number);

// A value from a peer that must not be used: where it was, what was found, what was expected.
struct Fault {
  std::string message;  // "arrival"
  std::string field;    // "ranks"
  std::string found;
  std::string expected;
};

// The error of all decoders.
class BadMessage : public Error {
 public:
  // `rank`: of the sender, in the set or world that the message belongs to; -1: not known here.
  explicit BadMessage(Fault fault, int rank = -1);

  const Fault& fault() const { return fault_; }
  int rank() const { return rank_; }
  // A decoder knows the bytes. Its caller knows the sender.
  BadMessage from(int rank) const { return BadMessage(fault_, rank); }
  // The sentence for people, with the sender's name in it.
  std::string text_from(const std::string& sender) const;

 private:
  Fault fault_;
  int rank_;
};

[[noreturn]] inline void refuse(const char* message, const char* field, std::string found,
                                std::string expected) {
  throw BadMessage({message, field, std::move(found), std::move(expected)});
}

}  // namespace hvd
