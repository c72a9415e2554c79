// What a peer has sent and must not be used: the error of all decoders.
#pragma once

#include <string>
#include <utility>

#include "core/error.h"

namespace hvd {

// Which value, as it was found, and what it must be.
struct Fault {
  std::string message;  // "arrival"
  std::string field;    // "ranks"
  std::string found;
  std::string expected;
};

class BadMessage : public Error {
 public:
  // `rank`: its sender's, of the set or world that the message belongs to; -1: not known here.
  explicit BadMessage(Fault fault, int rank = -1);

  const Fault& fault() const { return fault_; }
  int rank() const { return rank_; }
  // A decoder knows the bytes, its caller who sent them.
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
