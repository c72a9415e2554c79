#include "gpu/gpu.h"

#include "core/error.h"

namespace hvd {

Gpu::Gpu(const std::string& cuda_path, const std::vector<std::string>& nccl_paths)
    : driver_(std::make_shared<const CudaDriver>(cuda_path)),
      memory_(std::make_shared<DeviceMemory>(driver_)),
      ipc_memories_(std::make_shared<IpcMemories>(driver_)) {
  find_nccl(nccl_paths);
}

// One that a framework has loaded comes first: a process needs only one.
void Gpu::find_nccl(const std::vector<std::string>& paths) {
  for (const Loading loading : {Loading::kNever, Loading::kIfNeeded}) {
    nccl_problem_.clear();
    for (const std::string& path : paths) {
      try {
        nccl_ = std::make_unique<NcclLibrary>(path, loading);
        nccl_problem_.clear();
        return;
      } catch (const Error& error) {
        nccl_problem_ += (nccl_problem_.empty() ? "" : "; ") + std::string(error.what());
      }
    }
  }
  if (nccl_problem_.empty()) nccl_problem_ = "NCCL is not installed";
}

std::shared_ptr<Gpu> GpuAccess::open() {
  const std::lock_guard guard(mutex_);
  if (gpu_ == nullptr) gpu_ = std::make_shared<Gpu>(cuda_path_, nccl_paths_);
  is_open_.store(true);
  return gpu_;
}

}  // namespace hvd
