// A trial of Adasum's kernels on one GPU: known numbers, as if of several ranks, must give the
// CPU's result. So a GPU or a driver that is wrong costs speed, not results.
#pragma once

#include <cstddef>

#include "gpu/adasum_kernels.h"
#include "gpu/gpu.h"

namespace hvd {

class AdasumTrial {
 public:
  // Starts it. `vectors`: those of the kernels.
  AdasumTrial(Gpu& gpu, int device, AdasumKernels& kernels, std::size_t vectors);

  bool is_done() const { return done_->is_reached(); }
  // When it is done.
  bool is_right() const;

 private:
  void copy_in();
  void run(AdasumKernels& kernels, cuda::Address numbers);

  const CudaDriver& driver_;
  const std::size_t vectors_;
  const CudaStream stream_;
  PinnedMemory pinned_;
  DeviceBlockPtr block_;
  CudaEventPtr done_;
};

}  // namespace hvd
