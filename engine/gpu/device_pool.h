// Memory of one GPU in a CUDA memory pool of the engine's own. Neither allocating nor freeing waits
// for work on the GPU, as cuMemFree does.
//
// A pool of its own, because in the GPU's default pool an allocation may get memory that other
// libraries have freed, but still use.
#pragma once

#include <cstddef>

#include "gpu/cuda_objects.h"

namespace hvd {

class DevicePool final : public DeviceObject {
 public:
  // REQUIRES: driver.has_pools(device).
  DevicePool(const CudaDriver& driver, int device);
  ~DevicePool();

  // For use in any stream. 0: the GPU has no such memory left.
  cuda::Address allocate(std::size_t size_bytes);
  // The memory is free when `last_use` is reached; null: at once.
  void free(cuda::Address address, const CudaEventPtr& last_use) noexcept;

 private:
  const CudaStream idle_;     // where nothing waits
  const CudaStream waiting_;  // for the last uses
  cuda::Pool pool_ = nullptr;
};

}  // namespace hvd
