#include "gpu/ipc_memory.h"

#include <algorithm>
#include <utility>

namespace hvd {

IpcMemory::IpcMemory(const CudaDriver& driver, int device, std::size_t size_bytes)
    : DeviceObject(driver, device), size_bytes_(size_bytes) {
  const CurrentDevice current(driver_, device_);
  driver_.call(driver_.functions().mem_alloc, &address_, size_bytes_);
  const auto& get_handle = driver_.functions().ipc_get_handle;
  const cuda::Result result = get_handle.call(&handle_, address_);
  if (result == cuda::kSuccess) return;
  driver_.functions().mem_free.call(address_);
  driver_.check(result, get_handle.name);
}

IpcMemory::~IpcMemory() { free_with(driver_.functions().mem_free, address_); }

PeerMemory::PeerMemory(const CudaDriver& driver, int device, const cuda::IpcHandle& handle)
    : DeviceObject(driver, device) {
  const CurrentDevice current(driver_, device_);
  driver_.call(driver_.functions().ipc_open_handle, &address_, handle, cuda::kLazyPeerAccess);
}

PeerMemory::~PeerMemory() { free_with(driver_.functions().ipc_close_handle, address_); }

std::shared_ptr<IpcMemory> IpcMemories::take(int device, std::size_t size_bytes) {
  std::unique_ptr<IpcMemory> memory;
  {
    const std::lock_guard guard(mutex_);
    const auto found = std::ranges::find_if(spare_, [&](const auto& each) {
      return each->device() == device && each->size_bytes() == size_bytes;
    });
    if (found != spare_.end()) {
      memory = std::move(*found);
      spare_.erase(found);
    }
  }
  if (memory == nullptr) memory = std::make_unique<IpcMemory>(*driver_, device, size_bytes);
  return {memory.release(), [pool = shared_from_this()](IpcMemory* used) {
            pool->give_back(std::unique_ptr<IpcMemory>(used));
          }};
}

void IpcMemories::give_back(std::unique_ptr<IpcMemory> memory) {
  const std::lock_guard guard(mutex_);
  spare_.push_back(std::move(memory));
}

void IpcMemories::keep(std::shared_ptr<void> kept) {
  // Not a member: a kept object may own this one.
  static std::mutex mutex;
  static auto* const all = new std::list<std::shared_ptr<void>>;
  const std::lock_guard guard(mutex);
  all->push_back(std::move(kept));
}

}  // namespace hvd
