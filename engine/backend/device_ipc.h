// GPU tensors between ranks of one host, without NCCL: every rank has memory on its GPU that the
// others see (gpu/ipc_memory.h). Each puts its tensors there and takes what it needs from the
// others'; sums are made by kernels that read all of them.
//
// A bucket is cut into passes that fill half of the memory. When all ranks have met over the
// backend of host tensors, the half that they filled is there for all, and the other one, which
// they have emptied, may be filled again: so one pass is taken while the next is filled. On the GPU
// nothing waits for another process, and nobody writes another's memory. So who is lost holds up no
// GPU, and who is late harms nobody; the CPU waits in meetings only, which end when a rank is lost.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/device_ipc_plan.h"
#include "gpu/reduction_kernels.h"

namespace hvd {

// What a rank needs for it; see ipc_negotiation.h.
struct IpcPeers {
  std::shared_ptr<IpcMemory> own;
  std::vector<std::unique_ptr<PeerMemory>> others;  // by rank; null: this one
  std::vector<cuda::Address> addresses;             // by rank
  std::unique_ptr<ReductionKernels> kernels;
};

class DeviceIpc {
 public:
  // `host`: what carries host tensors of the set.
  DeviceIpc(Gpu& gpu, Backend& host, Place place, IpcPeers peers);
  ~DeviceIpc();
  DeviceIpc(const DeviceIpc&) = delete;
  DeviceIpc& operator=(const DeviceIpc&) = delete;

  // Works of one kind, of which ipc_runs() holds.
  void begin(std::span<const Work> works);
  // True when the last copy is in the stream; the event behind it is done().
  bool advance(PeerWait& blocked);
  const CudaEventPtr& done() const { return taken_; }
  // Closes what is open, if the GPU is not at work with it; otherwise the end of this object is the
  // next time to try.
  void close() noexcept;

 private:
  struct Pass {
    std::size_t begin = 0;  // in the streams
    std::size_t end = 0;
    std::size_t half_at = 0;  // in the memory
  };

  Pass pass() const;
  void fill();
  void take();
  void reduce(const IpcTaking& taking, std::size_t offset, Range part);
  void copy(cuda::Address to, cuda::Address from, std::size_t size_bytes, const CudaStream& stream);
  bool is_idle() const;

  Gpu& gpu_;
  Backend& host_;
  const Place place_;
  std::shared_ptr<IpcPeers> peers_;
  const int device_;
  const std::size_t half_bytes_;
  const CudaStream in_;
  const CudaStream out_;
  IpcPlan plan_;
  std::size_t pass_ = 0;  // of the bucket
  std::size_t pass_count_ = 0;
  std::size_t passes_before_ = 0;  // of earlier buckets
  bool is_meeting_ = false;
  CudaEventPtr filled_;
  CudaEventPtr taken_;
  std::vector<DeviceBlockPtr> blocks_;  // results for another GPU, until they are there
};

}  // namespace hvd
