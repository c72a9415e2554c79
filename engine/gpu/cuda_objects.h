// Streams, events and pinned memory, with owners.
#pragma once

#include <cstddef>
#include <memory>

#include "core/error.h"
#include "gpu/cuda_driver.h"

namespace hvd {

// For destructors: calls `free` with `device` current. If that fails, the process is ending or the
// device has failed, and nothing is left to free.
template <typename Free>
void free_on(const CudaDriver& driver, int device, Free&& free) noexcept {
  try {
    const CurrentDevice current(driver, device);
    free();
  } catch (const Error&) {
  }
}

// The base of classes that own something on one device.
class DeviceObject {
 public:
  DeviceObject(const DeviceObject&) = delete;
  DeviceObject& operator=(const DeviceObject&) = delete;

  int device() const { return device_; }
  const CudaDriver& driver() const { return driver_; }

 protected:
  DeviceObject(const CudaDriver& driver, int device) : driver_(driver), device_(device) {}
  ~DeviceObject() = default;

  template <typename... Parameters, typename... Arguments>
  void free_with(const CudaFunction<Parameters...>& function, Arguments... arguments) noexcept {
    free_on(driver_, device_, [&] { function.call(arguments...); });
  }

  const CudaDriver& driver_;
  const int device_;
};

// A point in a stream. After another record() it is the new point.
class CudaEvent final : public DeviceObject {
 public:
  CudaEvent(const CudaDriver& driver, int device);
  ~CudaEvent();

  // `stream`: of the same device.
  void record(cuda::Stream stream);
  // Later work in `stream`, of the current device, starts after the point. Does not wait.
  void hold_back(cuda::Stream stream) const;
  // Whether the device has reached the point; true before it is recorded.
  bool is_reached() const;
  // The CPU waits until then.
  void wait() const;

 private:
  cuda::Event event_ = nullptr;
};
using CudaEventPtr = std::shared_ptr<CudaEvent>;

// Runs independently of the default stream.
class CudaStream final : public DeviceObject {
 public:
  CudaStream(const CudaDriver& driver, int device);
  ~CudaStream();

  cuda::Stream get() const { return stream_; }
  CudaEventPtr mark() const;  // a new event, recorded here

 private:
  cuda::Stream stream_ = nullptr;
};

// Host memory that GPUs copy from and to without the CPU.
class PinnedMemory final : public DeviceObject {
 public:
  PinnedMemory(const CudaDriver& driver, int device, std::size_t size_bytes);
  ~PinnedMemory();

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  const std::size_t size_bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace hvd
