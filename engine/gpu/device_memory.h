// Memory of GPUs for the engine's own use: results with a shape that is known only after
// negotiation, and zeros of absent ranks.
//
// Blocks that are given back are kept for later, up to a limit. A block is in use until its event
// is reached. Only then is it given out again, so no work waits for it. No caller waits for work on
// a GPU either.
//
// A framework may keep all memory of a GPU for itself. Then blocks are pinned host memory, which
// the GPU reads and writes at the same address. It is slower, but the collective ends on all ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpu/device_pool.h"

namespace hvd {

class DeviceMemory;

// `data` is an address on the device: the CPU cannot read it.
struct DeviceBlock {
  std::byte* data = nullptr;
  std::size_t capacity_bytes = 0;
  int device = -1;
  bool is_on_host = false;
  std::shared_ptr<DevicePool> pool = nullptr;  // of memory of a GPU that has pools
  CudaEventPtr last_use;                       // set it when the work is in a stream
  const CudaDriver* driver = nullptr;

  cuda::Address address() const { return reinterpret_cast<cuda::Address>(data); }
  // Copies its beginning to memory of the same GPU, in a stream of that GPU. The copy is its last
  // use.
  void copy_to(cuda::Address to, std::size_t size_bytes, cuda::Stream stream);
};
using DeviceBlockPtr = std::shared_ptr<DeviceBlock>;

class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  // So many bytes are kept of all devices and the host together, at most.
  static constexpr std::size_t kMostSpare = 512UL << 20;

  explicit DeviceMemory(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}
  ~DeviceMemory();

  // Any thread. Throws Error(kSystem) when neither the GPU nor the host has such memory left.
  DeviceBlockPtr allocate(int device, std::size_t size_bytes);
  // What to tell the user when a GPU was full for the first time. Returned once.
  std::optional<std::string> take_warning();

 private:
  using Blocks = std::list<DeviceBlock>;

  DeviceBlock take_spare(int device, std::size_t size_bytes, bool is_on_host);
  DeviceBlock allocate_on_device(int device, std::size_t size_bytes);
  DeviceBlock allocate_on_host(int device, std::size_t size_bytes);
  std::shared_ptr<DevicePool> pool_of(int device);
  void give_back(DeviceBlock block);
  void drop_spare(int device);
  void free(const Blocks& blocks) const;

  const std::shared_ptr<const CudaDriver> driver_;
  std::atomic<int> full_device_{-1};
  std::atomic<bool> has_warned_{false};
  std::mutex mutex_;                                  // no memory is freed under it
  std::map<int, std::shared_ptr<DevicePool>> pools_;  // null: the device has none
  Blocks spare_;                                      // the longest unused first
  std::size_t spare_bytes_ = 0;
};

}  // namespace hvd
