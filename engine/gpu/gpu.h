// This process' access to GPUs: CUDA's driver, NCCL if it is installed, and memory for the engine's
// own use. There is one for all worlds of a process.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device_memory.h"
#include "gpu/gpu_kernels.h"
#include "gpu/ipc_memory.h"
#include "gpu/nccl_library.h"

namespace hvd {

// Kernels of each device, loaded when they are first wanted. Loading waits for all work of the
// device. Any thread.
template <typename Kernels>
class LoadedKernels {
 public:
  Kernels& of(const CudaDriver& driver, int device) {
    const std::lock_guard guard(mutex_);
    std::unique_ptr<Kernels>& kernels = by_device_[device];
    if (kernels == nullptr) kernels = std::make_unique<Kernels>(driver, device);
    return *kernels;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Kernels>> by_device_;
};

class Gpu {
 public:
  // Throws Error(kSystem) where the driver cannot be used. A failure of NCCL is kept as a text.
  // `nccl_paths`: to try, best first. One that this process has loaded already comes before them.
  Gpu(const std::string& cuda_path, const std::vector<std::string>& nccl_paths);

  const CudaDriver& driver() const { return *driver_; }
  // Null where there is none; nccl_problem() says why.
  const NcclLibrary* nccl() const { return nccl_.get(); }
  const std::string& nccl_problem() const { return nccl_problem_; }
  DeviceMemory& memory() { return *memory_; }
  IpcMemories& ipc_memories() { return *ipc_memories_; }
  // Throw Error(kSystem) where the driver does not translate them.
  MoveKernels& move_kernels(int device) { return move_kernels_.of(*driver_, device); }
  ReductionKernels& reduction_kernels(int device) {
    return reduction_kernels_.of(*driver_, device);
  }

 private:
  void find_nccl(const std::vector<std::string>& paths);

  const std::shared_ptr<const CudaDriver> driver_;
  std::unique_ptr<NcclLibrary> nccl_;
  std::string nccl_problem_;
  const std::shared_ptr<DeviceMemory> memory_;
  const std::shared_ptr<IpcMemories> ipc_memories_;
  LoadedKernels<MoveKernels> move_kernels_;
  LoadedKernels<ReductionKernels> reduction_kernels_;
};

// Opens a Gpu when the first tensor on a GPU comes. Before that a program may choose its GPU, or
// fork. Any thread.
class GpuAccess {
 public:
  GpuAccess(std::string cuda_path, std::vector<std::string> nccl_paths)
      : cuda_path_(std::move(cuda_path)), nccl_paths_(std::move(nccl_paths)) {}

  // Throws Error(kSystem) where CUDA's driver cannot be used.
  std::shared_ptr<Gpu> open();
  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }

 private:
  const std::string cuda_path_;
  const std::vector<std::string> nccl_paths_;
  std::mutex mutex_;
  std::shared_ptr<Gpu> gpu_;
  std::atomic<bool> is_open_{false};
};

}  // namespace hvd
