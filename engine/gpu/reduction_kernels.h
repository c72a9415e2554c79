// The kernels of reduction_ptx.h on one GPU.
#pragma once

#include <cstddef>
#include <span>

#include "gpu/gpu_module.h"
#include "gpu/reduction_ptx.h"

namespace hvd {

struct KernelCall {
  Dtype dtype = Dtype::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // has_reduction_kernel()
  double prescale = 1.0;         // for floats
  double postscale = 1.0;
};

// One thread at a time.
class ReductionKernels {
 public:
  // Throws Error(kSystem) where the driver does not translate them.
  ReductionKernels(const CudaDriver& driver, int device);

  // Puts to[i] = reduction of sources[...][i] into a stream of the device, which is current.
  // Addresses are aligned to their elements.
  void launch(const KernelCall& call, std::span<const cuda::Address> sources, cuda::Address to,
              std::size_t count, cuda::Stream stream);

 private:
  GpuModule module_;
};

}  // namespace hvd
