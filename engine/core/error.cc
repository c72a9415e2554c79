#include "core/error.h"

#include <system_error>

namespace hvd {

Error Error::of(const std::string& operation) const {
  if (subject_.operation == operation) return *this;
  Subject subject = subject_;
  subject.operation = operation;
  return Error(code_, operation + ": " + what(), std::move(subject));
}

Error system_error(const std::string& attempt, int error_number) {
  return Error(ErrorCode::kSystem, attempt + ": " + std::generic_category().message(error_number));
}

}  // namespace hvd
