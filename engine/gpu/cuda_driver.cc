#include "gpu/cuda_driver.h"

#include "core/error.h"

namespace hvd {

CudaDriver::CudaDriver(const std::string& path) : library_(path), functions_(library_) {
  call(functions_.init, 0U);
  call(functions_.driver_get_version, &version_);
  call(functions_.device_get_count, &device_count_);
  if (device_count_ == 0) throw Error(ErrorCode::kSystem, path + " finds no GPU");
  try {
    pool_functions_.emplace(library_);
  } catch (const Error&) {  // has_pools() is false
  }
}

cuda::Device CudaDriver::handle_of(int device) const {
  if (device < 0 || device >= device_count_) {
    throw Error(ErrorCode::kInvalidArgument, "there is no GPU " + std::to_string(device) +
                                                 "; this process sees " +
                                                 std::to_string(device_count_));
  }
  cuda::Device handle = 0;
  call(functions_.device_get, &handle, device);
  return handle;
}

cuda::Uuid CudaDriver::uuid_of(int device) const {
  cuda::Uuid uuid{};
  call(functions_.device_get_uuid, &uuid, handle_of(device));
  return uuid;
}

int CudaDriver::device_of(cuda::Address address) const {
  int device = 0;
  call(functions_.pointer_get_attribute, static_cast<void*>(&device), cuda::kDeviceOrdinal,
       address);
  return device;
}

bool CudaDriver::has_pools(int device) const {
  if (!pool_functions_) return false;
  int has_pools = 0;
  call(functions_.device_get_attribute, &has_pools, cuda::kPoolsSupported, handle_of(device));
  return has_pools != 0;
}

bool CudaDriver::is_on_host(cuda::Address address) const {
  unsigned type = 0;
  call(functions_.pointer_get_attribute, static_cast<void*>(&type), cuda::kMemoryType, address);
  return type == cuda::kHostMemory;
}

// A GPU does not reach every memory of another one, such as that of a pool. A copy between peers
// does without.
void CudaDriver::copy_across(cuda::Address to, int to_device, cuda::Address from, int from_device,
                             std::size_t size_bytes, cuda::Stream stream) const {
  if (size_bytes == 0) return;
  if (to_device == from_device || is_on_host(to) || is_on_host(from)) {
    return copy(to, from, size_bytes, stream);
  }
  call(functions_.copy_peer, to, context_of(to_device), from, context_of(from_device), size_bytes,
       stream);
}

cuda::Context CudaDriver::context_of(int device) const {
  const std::lock_guard guard(mutex_);
  const auto found = contexts_.find(device);
  if (found != contexts_.end()) return found->second;
  cuda::Context context = nullptr;
  call(functions_.primary_retain, &context, handle_of(device));
  return contexts_[device] = context;
}

void CudaDriver::check(cuda::Result result, const char* function) const {
  if (result != cuda::kSuccess) throw Error(ErrorCode::kSystem, text_of(result, function));
}

std::string CudaDriver::text_of(cuda::Result result, const char* function) const {
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.get_error_name.call(result, &name);
  functions_.get_error_string.call(result, &text);
  return std::string(function) + ": " + (name == nullptr ? std::to_string(result) : name) +
         (text == nullptr ? "" : std::string(", ") + text);
}

CurrentDevice::CurrentDevice(const CudaDriver& driver, int device)
    : driver_(driver), beside_captures_(driver) {
  driver_.call(driver_.functions().push_current, driver_.context_of(device));
}

CurrentDevice::~CurrentDevice() {
  cuda::Context popped = nullptr;
  driver_.functions().pop_current.call(&popped);
}

}  // namespace hvd
