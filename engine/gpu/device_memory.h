// Memory of GPUs for the engine's own use: results with a shape that is known only after
// negotiation, and zeros of absent ranks.
//
// CUDA's own allocation waits for the device, so blocks that are given back are kept for later, up
// to a limit. A block is in use until its event is reached. Only then is it given out again, so no
// work waits for it.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "gpu/cuda_objects.h"

namespace hvd {

class DeviceMemory;

// `data` is an address on the device: the CPU cannot read it.
struct DeviceBlock {
  std::byte* data = nullptr;
  std::size_t capacity_bytes = 0;
  int device = -1;
  CudaEventPtr last_use;  // null: the block is not in use
  const CudaDriver* driver = nullptr;

  cuda::Address address() const { return reinterpret_cast<cuda::Address>(data); }
  // Copies its beginning to memory of the same GPU, in a stream of that GPU. The copy is its last
  // use.
  void copy_to(cuda::Address to, std::size_t size_bytes, cuda::Stream stream);
};
using DeviceBlockPtr = std::shared_ptr<DeviceBlock>;

class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  // So many bytes are kept on all devices together, at most.
  static constexpr std::size_t kMostSpare = 512UL << 20;

  explicit DeviceMemory(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}
  ~DeviceMemory();

  // Any thread. Throws Error(kSystem) when the GPU has no such memory left.
  DeviceBlockPtr allocate(int device, std::size_t size_bytes);

 private:
  DeviceBlock take_spare(int device, std::size_t size_bytes);
  std::byte* allocate_new(int device, std::size_t size_bytes);
  void give_back(DeviceBlock block);
  void free(const DeviceBlock& block) const;
  void free_spare();

  const std::shared_ptr<const CudaDriver> driver_;
  std::mutex mutex_;
  std::list<DeviceBlock> spare_;  // the longest unused first
  std::size_t spare_bytes_ = 0;
};

}  // namespace hvd
