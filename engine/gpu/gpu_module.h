// Kernels on one GPU, out of PTX text that CUDA's driver translates.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "gpu/cuda_objects.h"

namespace hvd {

// One thread at a time.
class GpuModule final : public DeviceObject {
 public:
  static constexpr unsigned kThreads = 256;  // of a block, at most

  // Throws Error(kSystem) where the driver does not translate the text.
  GpuModule(const CudaDriver& driver, int device, const std::string& text);
  ~GpuModule();

  // Puts a kernel into a stream of the device, which is current: in blocks of kThreads, or in one
  // of fewer threads. `arguments`: their addresses.
  void launch(const std::string& kernel, std::size_t threads, void** arguments,
              cuda::Stream stream);

 private:
  cuda::Function function_of(const std::string& kernel);

  cuda::Module module_ = nullptr;
  std::map<std::string, cuda::Function> functions_;
};

}  // namespace hvd
