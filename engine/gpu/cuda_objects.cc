#include "gpu/cuda_objects.h"

namespace hvd {

CudaEvent::CudaEvent(const CudaDriver& driver, int device) : DeviceObject(driver, device) {
  const CurrentDevice current(driver_, device_);
  driver_.call(driver_.functions().event_create, &event_, cuda::kWithoutTiming);
}

CudaEvent::~CudaEvent() { free_with(driver_.functions().event_destroy, event_); }

void CudaEvent::record(cuda::Stream stream) {
  const CurrentDevice current(driver_, device_);  // the default stream has no device of its own
  driver_.call(driver_.functions().event_record, event_, stream);
}

void CudaEvent::hold_back(cuda::Stream stream) const {
  driver_.call(driver_.functions().stream_wait_event, stream, event_, 0U);
}

bool CudaEvent::is_reached() const {
  const BesideCaptures beside_captures(driver_);
  const cuda::Result result = driver_.functions().event_query.call(event_);
  if (result == cuda::kNotReady) return false;
  driver_.check(result, driver_.functions().event_query.name);
  return true;
}

void CudaEvent::wait() const {
  const CurrentDevice current(driver_, device_);
  driver_.call(driver_.functions().event_synchronize, event_);
}

CudaStream::CudaStream(const CudaDriver& driver, int device) : DeviceObject(driver, device) {
  const CurrentDevice current(driver_, device_);
  int least = 0;
  int greatest = 0;
  driver_.call(driver_.functions().stream_priority_range, &least, &greatest);
  driver_.call(driver_.functions().stream_create, &stream_, cuda::kNonBlocking, greatest);
}

CudaStream::~CudaStream() { free_with(driver_.functions().stream_destroy, stream_); }

CudaEventPtr CudaStream::mark() const {
  auto event = std::make_shared<CudaEvent>(driver_, device_);
  event->record(stream_);
  return event;
}

PinnedMemory::PinnedMemory(const CudaDriver& driver, int device, std::size_t size_bytes)
    : DeviceObject(driver, device), size_bytes_(size_bytes) {
  const CurrentDevice current(driver_, device_);
  void* data = nullptr;
  driver_.call(driver_.functions().mem_host_alloc, &data, size_bytes_, cuda::kPortable);
  data_ = static_cast<std::byte*>(data);
}

PinnedMemory::~PinnedMemory() { free_with(driver_.functions().mem_free_host, data_); }

}  // namespace hvd
