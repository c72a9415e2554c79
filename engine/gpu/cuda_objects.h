// Streams, events and pinned memory, with owners.
#pragma once

#include <cstddef>
#include <memory>

#include "core/error.h"
#include "gpu/cuda_driver.h"

namespace hvd {

// For destructors: what frees is called with `device` current; where that fails, the process or the
// device is at its end, and nothing is left to free.
template <typename Free>
void free_on(const CudaDriver& driver, int device, Free&& free) noexcept {
  try {
    const CurrentDevice current(driver, device);
    free();
  } catch (const Error&) {
  }
}

// A point in a stream. Recorded again, it means the new point.
class CudaEvent {
 public:
  CudaEvent(const CudaDriver& driver, int device);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // `stream`: of the same device.
  void record(cuda::Stream stream);
  // What is put into `stream` from now on, of the current device, comes after the point. Does not
  // wait.
  void hold_back(cuda::Stream stream) const;
  // Has the device come to the point? Yes before it is recorded.
  bool is_reached() const;

 private:
  const CudaDriver& driver_;
  const int device_;
  cuda::Event event_ = nullptr;
};
using CudaEventPtr = std::shared_ptr<CudaEvent>;

// Runs beside the default stream.
class CudaStream {
 public:
  CudaStream(const CudaDriver& driver, int device);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cuda::Stream get() const { return stream_; }
  int device() const { return device_; }
  const CudaDriver& driver() const { return driver_; }
  CudaEventPtr mark() const;  // a new event, recorded here

 private:
  const CudaDriver& driver_;
  const int device_;
  cuda::Stream stream_ = nullptr;
};

// Host memory that GPUs copy from and to without the CPU.
class PinnedMemory {
 public:
  PinnedMemory(const CudaDriver& driver, int device, std::size_t size_bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  const CudaDriver& driver_;
  const int device_;
  const std::size_t size_bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace hvd
