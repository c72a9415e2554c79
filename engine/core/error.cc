#include "core/error.h"

#include <system_error>

namespace hvd {

Error system_error(const std::string& attempt, int error_number) {
  return Error(ErrorCode::kSystem, attempt + ": " + std::generic_category().message(error_number));
}

}  // namespace hvd
