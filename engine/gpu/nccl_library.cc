#include "gpu/nccl_library.h"

#include "core/error.h"

namespace hvd {

NcclLibrary::NcclLibrary(const std::string& path, Loading loading)
    : library_(path, loading), functions_(library_) {
  check(functions_.get_version.call(&version_), functions_.get_version.name, nullptr);
}

void NcclLibrary::check(nccl::Result result, const char* function, nccl::Comm comm) const {
  if (result == nccl::Result::kSuccess || result == nccl::Result::kInProgress) return;
  std::string text = std::string(function) + ": " + functions_.get_error_string(result);
  const char* last = functions_.get_last_error(comm);
  if (last != nullptr && *last != '\0') text += " (" + std::string(last) + ")";
  if (result == nccl::Result::kRemoteError) throw UnnamedLoss(text);
  throw Error(ErrorCode::kSystem, text);
}

}  // namespace hvd
