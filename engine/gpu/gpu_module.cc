#include "gpu/gpu_module.h"

#include <algorithm>

namespace hvd {

GpuModule::GpuModule(const CudaDriver& driver, int device, const std::string& text)
    : DeviceObject(driver, device) {
  const CurrentDevice current(driver_, device_);
  driver_.call(driver_.functions().module_load, &module_, static_cast<const void*>(text.c_str()));
}

GpuModule::~GpuModule() { free_with(driver_.functions().module_unload, module_); }

void GpuModule::launch(const std::string& kernel, std::size_t threads, void** arguments,
                       cuda::Stream stream) {
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  const unsigned of_block = std::min(kThreads, static_cast<unsigned>(threads));
  driver_.call(driver_.functions().launch_kernel, function_of(kernel), blocks, 1U, 1U, of_block, 1U,
               1U, 0U, stream, arguments, static_cast<void**>(nullptr));
}

cuda::Function GpuModule::function_of(const std::string& kernel) {
  const auto found = functions_.find(kernel);
  if (found != functions_.end()) return found->second;
  cuda::Function function = nullptr;
  driver_.call(driver_.functions().module_get_function, &function, module_, kernel.c_str());
  return functions_[kernel] = function;
}

}  // namespace hvd
