#include "gpu/reduction_kernels.h"

#include <algorithm>
#include <array>

namespace hvd {

namespace {

// Enough to keep the largest GPUs busy; threads take several elements where there are more.
constexpr std::size_t kMostReducingThreads = 2048 * GpuModule::kThreads;

}  // namespace

ReductionKernels::ReductionKernels(const CudaDriver& driver, int device)
    : module_(driver, device, reduction_ptx()) {}

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
  const std::size_t threads = std::min(count, kMostReducingThreads);
  module_.launch(reduction_kernel_name(call.dtype, call.op), threads, arguments.data(), stream);
}

}  // namespace hvd
