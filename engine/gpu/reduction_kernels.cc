#include "gpu/reduction_kernels.h"

#include <algorithm>
#include <array>
#include <string>

namespace hvd {

namespace {

constexpr unsigned kThreads = 256;
// Enough to keep the largest GPUs busy; threads take several elements where there are more.
constexpr std::size_t kMostBlocks = 2048;

}  // namespace

ReductionKernels::ReductionKernels(const CudaDriver& driver, int device)
    : driver_(driver), device_(device) {
  const CurrentDevice current(driver_, device_);
  const std::string text = reduction_ptx();
  driver_.call(driver_.functions().module_load, &module_, static_cast<const void*>(text.c_str()));
}

ReductionKernels::~ReductionKernels() {
  free_on(driver_, device_, [this] { driver_.functions().module_unload.call(module_); });
}

void ReductionKernels::launch(const KernelCall& call, std::span<const cuda::Address> sources,
                              cuda::Address to, std::size_t count, cuda::Stream stream) {
  if (count == 0) return;
  std::array<cuda::Address, kMostSources> from{};
  std::ranges::copy(sources, from.begin());
  std::uint64_t count_argument = count;
  auto source_count = static_cast<std::uint32_t>(sources.size());
  KernelCall values = call;
  std::array<void*, 6> arguments{
      &to, &count_argument, &source_count, &values.prescale, &values.postscale, from.data()};
  const auto blocks =
      static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
  driver_.call(driver_.functions().launch_kernel, function_of(call), blocks, 1U, 1U, kThreads, 1U,
               1U, 0U, stream, arguments.data(), static_cast<void**>(nullptr));
}

cuda::Function ReductionKernels::function_of(const KernelCall& call) {
  const auto key = std::pair(call.dtype, call.op);
  const auto found = functions_.find(key);
  if (found != functions_.end()) return found->second;
  cuda::Function function = nullptr;
  const std::string name = reduction_kernel_name(call.dtype, call.op);
  driver_.call(driver_.functions().module_get_function, &function, module_, name.c_str());
  return functions_[key] = function;
}

}  // namespace hvd
