// How the ranks of a process set agree to run Adasum on their GPUs, before their first Adasum over
// NCCL. Each compiles the kernels and tries them. Then all agree on whether every rank succeeded.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "backend/status_agreement.h"
#include "gpu/gpu.h"
#include "gpu/gpu_kernels.h"

namespace hvd {

// A trial of Adasum's kernels on one GPU: known numbers in place of several ranks' tensors must
// give the CPU's result. So a faulty GPU or driver costs speed, but gives no wrong results.
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

class AdasumNegotiation : public Negotiation {
 public:
  using Negotiation::Negotiation;

  // This rank's GPU is `device`.
  void begin(int device);
  std::unique_ptr<AdasumKernels> take_kernels() { return std::move(kernels_); }

 private:
  void judge();

  std::unique_ptr<AdasumKernels> kernels_;
  std::unique_ptr<AdasumTrial> trial_;
};

}  // namespace hvd
