// Adasum over NCCL, in three steps. The CPU waits for none of them. First each rank gets its share
// of all ranks' tensors, point to point, and adds up the dot products over its share. Second, these
// are summed over the ranks. Third, each rank computes its share of the result and sends it to all.
//
// So a tensor travels as in an allreduce. The extra memory is as large as the tensors of a bucket.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/device_channel.h"
#include "backend/nccl_call.h"
#include "gpu/gpu.h"
#include "gpu/gpu_kernels.h"

namespace hvd {

class NcclAdasum {
 public:
  static constexpr int kSteps = 3;

  NcclAdasum(Gpu& gpu, Place place, std::unique_ptr<AdasumKernels> kernels);

  // Takes memory for a bucket.
  void begin(std::span<const NcclCall> calls, DeviceChannel& channel);
  // Call it when NCCL has taken all calls of the step before.
  void start(int step);
  // The memory is in use until `done`.
  void end(const CudaEventPtr& done);

 private:
  struct Tensor {
    const NcclCall* call;
    RowRange own;       // elements of this rank's share
    AdasumParts parts;  // of all ranks' tensors
  };

  void add(const NcclCall& call);
  cuda::Address allocate(std::size_t size_bytes);
  RowRange share_of(const Tensor& tensor, int rank) const;
  void exchange_shares();
  void add_up_dots();
  void share_results();
  void sum_own_shares();
  cuda::Stream stream() const { return channel_->stream.get(); }

  Gpu& gpu_;
  const Place place_;
  const std::unique_ptr<AdasumKernels> kernels_;
  DeviceChannel* channel_ = nullptr;
  std::vector<Tensor> tensors_;
  std::vector<DeviceBlockPtr> blocks_;
  cuda::Address grams_ = 0;
  cuda::Address weights_ = 0;
  cuda::Address scratch_ = 0;
};

}  // namespace hvd
