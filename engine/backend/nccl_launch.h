// A bucket as a group of NCCL calls in a channel's stream, or as a few groups on two levels or for
// Adasum. It starts when its tensors are ready, and an event follows it. The CPU does not wait.
//
// NCCL reads and writes large tensors in place; small ones that are reduced travel in one buffer
// (see nccl_reductions.h). Tensors on another GPU than the communicator's are copied there and
// back. Absent ranks use scratch memory.
#pragma once

#include <span>
#include <vector>

#include "backend/device_channel.h"
#include "backend/nccl_adasum.h"
#include "backend/nccl_call.h"
#include "backend/nccl_levels.h"
#include "backend/nccl_reductions.h"
#include "backend/work.h"
#include "gpu/gpu.h"

namespace hvd {

class NcclLaunch {
 public:
  NcclLaunch(Gpu& gpu, Place place) : gpu_(gpu), place_(place) {}

  // Works of one kind, all of which NCCL runs. `levels`: null for all ranks at once.
  void begin(std::span<const Work> works, DeviceChannel& channel, const NcclLevels* levels);
  void begin_adasum(std::span<const Work> works, DeviceChannel& channel, NcclAdasum& adasum);
  // True when NCCL has taken all calls; then done() is the event that follows them.
  bool advance();
  const CudaEventPtr& done() const { return done_; }

 private:
  void prepare(std::span<const Work> works, DeviceChannel& channel);
  void plan_reductions();
  std::byte* packed_memory(std::size_t size_bytes);
  void scale_parts(NcclCall& call);
  void move(const ScaledMoves& moves);
  void add_call(const Work& work);
  std::byte* scratch(std::size_t size_bytes);
  Kind kind() const { return calls_.front().work->request->kind; }
  int step_count() const;
  NcclCommunicator& communicator() const;
  void start_step();
  void start(const NcclCall& call);
  void start_allreduce(const NcclReduction& reduction);
  void start_allgather(const NcclCall& call);
  void start_reducescatter(const NcclCall& call);
  void start_alltoall(const NcclCall& call);
  void end();
  cuda::Stream stream() const { return channel_->stream.get(); }

  Gpu& gpu_;
  const Place place_;
  DeviceChannel* channel_ = nullptr;
  const NcclLevels* levels_ = nullptr;
  NcclAdasum* adasum_ = nullptr;
  int step_ = 0;  // the last step that was given to NCCL
  std::vector<NcclCall> calls_;
  ReductionPlan reductions_;            // the calls are those of allreduces
  std::vector<DeviceBlockPtr> blocks_;  // scratch memory, until the event
  CudaEventPtr done_;
};

}  // namespace hvd
