#include "gpu/device_pool.h"

namespace hvd {

DevicePool::DevicePool(const CudaDriver& driver, int device)
    : DeviceObject(driver, device), idle_(driver, device), waiting_(driver, device) {
  const CurrentDevice current(driver_, device_);
  const CudaPoolFunctions& functions = driver_.pool_functions();
  const cuda::PoolProperties properties{.id = device_};
  driver_.call(functions.create, &pool_, &properties);
  // Otherwise an allocation may wait for the last use of freed memory.
  int no = 0;
  const auto& set_attribute = functions.set_attribute;
  const cuda::Result result = set_attribute.call(pool_, cuda::kInternalReuse, &no);
  if (result == cuda::kSuccess) return;
  functions.destroy.call(pool_);
  driver_.check(result, set_attribute.name);
}

// CUDA keeps the memory that is still in use until then.
DevicePool::~DevicePool() { free_with(driver_.pool_functions().destroy, pool_); }

cuda::Address DevicePool::allocate(std::size_t size_bytes) {
  const CurrentDevice current(driver_, device_);
  const auto& allocate = driver_.pool_functions().allocate;
  cuda::Address address = 0;
  const cuda::Result result = allocate.call(&address, size_bytes, pool_, idle_.get());
  if (result == cuda::kOutOfMemory) return 0;
  driver_.check(result, allocate.name);
  idle_.mark()->wait();  // from here on other streams may use it
  return address;
}

// Memory that is not in use any more can be allocated again at once, in the same stream.
void DevicePool::free(cuda::Address address, const CudaEventPtr& last_use) noexcept {
  free_on(driver_, device_, [&] {
    const bool is_idle = last_use == nullptr || last_use->is_reached();
    if (!is_idle) last_use->hold_back(waiting_.get());
    const CudaStream& stream = is_idle ? idle_ : waiting_;
    driver_.pool_functions().free.call(address, stream.get());
  });
}

}  // namespace hvd
