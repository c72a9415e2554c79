#include "core/error.h"

#include <system_error>
#include <utility>

namespace hvd {

namespace {

std::string text_of(const Fault& fault, const std::string& sender) {
  return "a message '" + fault.message + "' from " + sender + " has " + fault.found + " in field " +
         fault.field + "; expected " + fault.expected;
}

std::string plain_name(int rank) {
  return rank < 0 ? "another rank" : "rank " + std::to_string(rank);
}

}  // namespace

Error Error::of(const std::string& operation) const {
  if (subject_.operation == operation) return *this;
  Subject subject = subject_;
  subject.operation = operation;
  return Error(code_, operation + ": " + what(), std::move(subject));
}

Error system_error(const std::string& attempt, int error_number) {
  return Error(ErrorCode::kSystem, attempt + ": " + std::generic_category().message(error_number));
}

BadMessage::BadMessage(Fault fault, int rank)
    : Error(ErrorCode::kInternal, text_of(fault, plain_name(rank))),
      fault_(std::move(fault)),
      rank_(rank) {}

std::string BadMessage::text_from(const std::string& sender) const {
  return text_of(fault_, sender);
}

}  // namespace hvd
