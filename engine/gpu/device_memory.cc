#include "gpu/device_memory.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/quiet_thread.h"

namespace hvd {

namespace {

// Few different sizes, so that a block can be used again for another result.
constexpr std::size_t kGrain = 64UL << 10;

std::size_t rounded(std::size_t size_bytes) { return (size_bytes / kGrain + 1) * kGrain; }

// Any work of the device may still use a block whose operation has failed.
// CUDA waits for that before it frees memory without a pool, too.
void free_and_wait(const CudaDriver& driver, const std::list<DeviceBlock>& blocks) {
  const CudaFunctions& functions = driver.functions();
  for (const DeviceBlock& block : blocks) {
    free_on(driver, block.device, [&] {
      if (block.last_use == nullptr) {
        driver.call(functions.context_synchronize);
      } else {
        block.last_use->wait();
      }
      if (block.pool != nullptr) {
        block.pool->free(block.address(), block.last_use);
      } else if (block.is_on_host) {
        functions.mem_free_host.call(block.data);
      } else {
        functions.mem_free.call(block.address());
      }
    });
  }
}

}  // namespace

void DeviceBlock::copy_to(cuda::Address to, std::size_t size_bytes, cuda::Stream stream) {
  if (size_bytes == 0) return;
  const CurrentDevice current(*driver, device);
  driver->copy(to, address(), size_bytes, stream);
  auto event = std::make_shared<CudaEvent>(*driver, device);
  event->record(stream);
  last_use = std::move(event);
}

DeviceMemory::~DeviceMemory() { free(spare_); }

DeviceBlockPtr DeviceMemory::allocate(int device, std::size_t size_bytes) {
  DeviceBlock block = take_spare(device, size_bytes, false);
  if (block.data == nullptr) block = allocate_on_device(device, rounded(size_bytes));
  if (block.data == nullptr) {
    drop_spare(device);
    block = allocate_on_device(device, rounded(size_bytes));
  }
  if (block.data == nullptr) block = take_spare(device, size_bytes, true);
  if (block.data == nullptr) block = allocate_on_host(device, rounded(size_bytes));
  return {new DeviceBlock(std::move(block)), [pool = shared_from_this()](DeviceBlock* used) {
            pool->give_back(std::move(*used));
            delete used;
          }};
}

// A block that is free and not much too large; empty if there is none.
DeviceBlock DeviceMemory::take_spare(int device, std::size_t size_bytes, bool is_on_host) {
  const std::lock_guard guard(mutex_);
  const auto fits = [&](const DeviceBlock& block) {
    return block.device == device && block.is_on_host == is_on_host &&
           block.capacity_bytes >= size_bytes && block.capacity_bytes / 2 <= rounded(size_bytes) &&
           block.last_use->is_reached();
  };
  const auto found = std::ranges::find_if(spare_, fits);
  if (found == spare_.end()) return {};
  DeviceBlock block = std::move(*found);
  spare_.erase(found);
  spare_bytes_ -= block.capacity_bytes;
  block.last_use.reset();
  return block;
}

// An empty block when the GPU is full.
DeviceBlock DeviceMemory::allocate_on_device(int device, std::size_t size_bytes) {
  DeviceBlock block{
      .capacity_bytes = size_bytes, .device = device, .last_use = nullptr, .driver = driver_.get()};
  cuda::Address address = 0;
  block.pool = pool_of(device);
  if (block.pool != nullptr) {
    address = block.pool->allocate(size_bytes);
  } else {
    const CurrentDevice current(*driver_, device);
    const auto& mem_alloc = driver_->functions().mem_alloc;
    const cuda::Result result = mem_alloc.call(&address, size_bytes);
    if (result != cuda::kOutOfMemory) driver_->check(result, mem_alloc.name);
  }
  block.data = reinterpret_cast<std::byte*>(address);
  return block;
}

DeviceBlock DeviceMemory::allocate_on_host(int device, std::size_t size_bytes) {
  const CurrentDevice current(*driver_, device);
  const CudaFunctions& functions = driver_->functions();
  void* data = nullptr;
  const cuda::Result result = functions.mem_host_alloc.call(&data, size_bytes, cuda::kPortable);
  if (result != cuda::kSuccess) {
    std::size_t free_bytes = 0;
    std::size_t all_bytes = 0;
    functions.mem_get_info.call(&free_bytes, &all_bytes);
    throw Error(ErrorCode::kSystem, "GPU " + std::to_string(device) + " has " +
                                        std::to_string(free_bytes) + " bytes free of " +
                                        std::to_string(all_bytes) + ", but " +
                                        std::to_string(size_bytes) +
                                        " are needed; nor can they be pinned host memory: " +
                                        driver_->text_of(result, functions.mem_host_alloc.name));
  }
  full_device_ = device;
  return {.data = static_cast<std::byte*>(data),
          .capacity_bytes = size_bytes,
          .device = device,
          .is_on_host = true,
          .last_use = nullptr,
          .driver = driver_.get()};
}

std::optional<std::string> DeviceMemory::take_warning() {
  const int device = full_device_;
  if (device < 0 || has_warned_.exchange(true)) return std::nullopt;
  return "GPU " + std::to_string(device) +
         " is full: results for it go through pinned host memory, which is slower";
}

std::shared_ptr<DevicePool> DeviceMemory::pool_of(int device) {
  const std::lock_guard guard(mutex_);
  const auto found = pools_.find(device);
  if (found != pools_.end()) return found->second;
  std::shared_ptr<DevicePool> pool;
  if (driver_->has_pools(device)) pool = std::make_shared<DevicePool>(*driver_, device);
  return pools_[device] = std::move(pool);
}

void DeviceMemory::give_back(DeviceBlock block) {
  Blocks dropped;
  if (block.last_use == nullptr) {
    dropped.push_back(std::move(block));
  } else {
    const std::lock_guard guard(mutex_);
    spare_bytes_ += block.capacity_bytes;
    spare_.push_back(std::move(block));
    while (spare_bytes_ > kMostSpare) {
      spare_bytes_ -= spare_.front().capacity_bytes;
      dropped.splice(dropped.end(), spare_, spare_.begin());
    }
  }
  free(dropped);
}

// Frees the memory of the device that is kept for later.
void DeviceMemory::drop_spare(int device) {
  Blocks dropped;
  {
    const std::lock_guard guard(mutex_);
    for (auto block = spare_.begin(); block != spare_.end();) {
      const auto next = std::next(block);
      if (block->device == device && !block->is_on_host) {
        spare_bytes_ -= block->capacity_bytes;
        dropped.splice(dropped.end(), spare_, block);
      }
      block = next;
    }
  }
  free(dropped);
}

// If it has to wait, it does so in a thread of its own: this one may hold Python's lock, and the
// device may be at work with something that waits for this process.
void DeviceMemory::free(const Blocks& blocks) const {
  Blocks others;
  for (const DeviceBlock& block : blocks) {
    if (block.pool != nullptr && block.last_use != nullptr) {
      block.pool->free(block.address(), block.last_use);
    } else {
      others.push_back(block);
    }
  }
  if (others.empty()) return;
  auto free_others = [driver = driver_, others]() mutable {
    free_and_wait(*driver, others);
    others.clear();  // before the driver
  };
  try {
    start_detached(free_others);
  } catch (const std::system_error&) {  // there can be no more threads
    free_others();
  }
}

}  // namespace hvd
