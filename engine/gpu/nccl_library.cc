#include "gpu/nccl_library.h"

#include "core/error.h"

namespace hvd {

NcclLibrary::NcclLibrary(const std::string& path) : library_(path) {
  load();
  check(functions_.get_version.call(&version_), functions_.get_version.name, nullptr);
}

void NcclLibrary::load() {
  const auto find = [this](auto&... functions) {
    (library_.find(functions.name, functions.call), ...);
  };
  NcclFunctions& f = functions_;
  find(f.get_version, f.get_unique_id, f.comm_init, f.comm_finalize, f.comm_destroy, f.comm_abort,
       f.comm_get_async_error, f.group_start, f.group_end, f.all_reduce, f.reduce, f.reduce_scatter,
       f.broadcast, f.all_gather, f.send, f.receive, f.create_scaled_sum, f.destroy_op);
  library_.find("ncclGetErrorString", f.get_error_string);
  library_.find("ncclGetLastError", f.get_last_error);
}

void NcclLibrary::check(nccl::Result result, const char* function, nccl::Comm comm) const {
  if (result == nccl::Result::kSuccess || result == nccl::Result::kInProgress) return;
  std::string text = std::string(function) + ": " + functions_.get_error_string(result);
  const char* last = functions_.get_last_error(comm);
  if (last != nullptr && *last != '\0') text += " (" + std::string(last) + ")";
  throw Error(ErrorCode::kSystem, text);
}

}  // namespace hvd
