#include "gpu/gpu.h"

#include "core/error.h"

namespace hvd {

Gpu::Gpu(const std::string& cuda_path, const std::string& nccl_path)
    : driver_(std::make_shared<const CudaDriver>(cuda_path)),
      memory_(std::make_shared<DeviceMemory>(driver_)),
      ipc_memories_(std::make_shared<IpcMemories>(driver_)) {
  if (nccl_path.empty()) {
    nccl_problem_ = "NCCL is not installed";
    return;
  }
  try {
    nccl_ = std::make_unique<NcclLibrary>(nccl_path);
  } catch (const Error& error) {
    nccl_problem_ = error.what();
  }
}

std::shared_ptr<Gpu> GpuAccess::open() {
  const std::lock_guard guard(mutex_);
  if (gpu_ == nullptr) gpu_ = std::make_shared<Gpu>(cuda_path_, nccl_path_);
  is_open_.store(true);
  return gpu_;
}

}  // namespace hvd
