#include "gpu/device_memory.h"

#include <algorithm>
#include <utility>

namespace hvd {

namespace {

// Few different sizes, so that a block can be used again for another result.
constexpr std::size_t kGrain = 64UL << 10;

std::size_t rounded(std::size_t size_bytes) { return (size_bytes / kGrain + 1) * kGrain; }

}  // namespace

void DeviceBlock::copy_to(cuda::Address to, std::size_t size_bytes, cuda::Stream stream) {
  if (size_bytes == 0) return;
  const CurrentDevice current(*driver, device);
  driver->copy(to, address(), size_bytes, stream);
  auto event = std::make_shared<CudaEvent>(*driver, device);
  event->record(stream);
  last_use = std::move(event);
}

DeviceMemory::~DeviceMemory() { free_spare(); }

DeviceBlockPtr DeviceMemory::allocate(int device, std::size_t size_bytes) {
  DeviceBlock block = take_spare(device, size_bytes);
  if (block.data == nullptr) {
    const std::size_t capacity_bytes = rounded(size_bytes);
    block = {.data = allocate_new(device, capacity_bytes),
             .capacity_bytes = capacity_bytes,
             .device = device,
             .last_use = nullptr,
             .driver = driver_.get()};
  }
  return {new DeviceBlock(std::move(block)), [pool = shared_from_this()](DeviceBlock* used) {
            pool->give_back(std::move(*used));
            delete used;
          }};
}

// A block that is free and not much too large; empty if there is none.
DeviceBlock DeviceMemory::take_spare(int device, std::size_t size_bytes) {
  const std::lock_guard guard(mutex_);
  const auto fits = [&](const DeviceBlock& block) {
    return block.device == device && block.capacity_bytes >= size_bytes &&
           block.capacity_bytes / 2 <= rounded(size_bytes) &&
           (block.last_use == nullptr || block.last_use->is_reached());
  };
  const auto found = std::ranges::find_if(spare_, fits);
  if (found == spare_.end()) return {};
  DeviceBlock block = std::move(*found);
  spare_.erase(found);
  spare_bytes_ -= block.capacity_bytes;
  block.last_use.reset();
  return block;
}

std::byte* DeviceMemory::allocate_new(int device, std::size_t size_bytes) {
  const CurrentDevice current(*driver_, device);
  const auto& function = driver_->functions().mem_alloc;
  cuda::Address address = 0;
  cuda::Result result = function.call(&address, size_bytes);
  if (result == cuda::kOutOfMemory) {
    free_spare();
    result = function.call(&address, size_bytes);
  }
  driver_->check(result, function.name);
  return reinterpret_cast<std::byte*>(address);
}

void DeviceMemory::give_back(DeviceBlock block) {
  const std::lock_guard guard(mutex_);
  spare_bytes_ += block.capacity_bytes;
  spare_.push_back(std::move(block));
  while (spare_bytes_ > kMostSpare) {
    free(spare_.front());
    spare_bytes_ -= spare_.front().capacity_bytes;
    spare_.pop_front();
  }
}

// CUDA waits for work that still uses the block.
void DeviceMemory::free(const DeviceBlock& block) const {
  free_on(*driver_, block.device, [&] { driver_->functions().mem_free.call(block.address()); });
}

void DeviceMemory::free_spare() {
  const std::lock_guard guard(mutex_);
  for (const DeviceBlock& block : spare_) free(block);
  spare_.clear();
  spare_bytes_ = 0;
}

}  // namespace hvd
