// GPU tensors between ranks of one host, without NCCL. Every rank has memory on its GPU that the
// other ranks see (gpu/ipc_memory.h). It copies its tensors there and takes what it needs from the
// others' memory. Kernels that read the memory of all ranks make the sums.
//
// A bucket is cut into passes that fill half of the memory. Between passes the ranks wait for each
// other in a barrier of the backend of host tensors. After it all ranks have filled one half, which
// all may read, and emptied the other half, which may be filled again: one pass is taken while the
// next is filled. On the GPU nothing waits for another process, and a rank writes its own memory
// only. So a slow rank or a lost rank blocks no GPU. The CPU waits in barriers only, and these end
// when a rank is lost.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/device_ipc_plan.h"
#include "gpu/gpu_kernels.h"

namespace hvd {

// The memory and the kernels that ipc_negotiation.h prepares for a rank.
struct IpcPeers {
  std::shared_ptr<IpcMemory> own;
  std::vector<std::unique_ptr<PeerMemory>> others;  // by rank; null: this one
  std::vector<cuda::Address> addresses;             // by rank
  ReductionKernels* kernels = nullptr;              // the GPU's
};

class DeviceIpc {
 public:
  // `host`: the backend for host tensors of the set.
  DeviceIpc(Gpu& gpu, Backend& host, Place place, IpcPeers peers);
  ~DeviceIpc();

  // Works of one kind, of which ipc_runs() holds.
  void begin(std::span<const Work> works);
  // True when the last copy is in the stream; the event behind it is done().
  bool advance(PeerWait& blocked);
  const CudaEventPtr& done() const { return taken_; }
  // Closes the memory of other ranks, unless the GPU is still at work with it. Then the destructor
  // tries again.
  void close() noexcept;

 private:
  struct Pass {
    Range range;              // of the streams
    std::size_t half_at = 0;  // in the memory
  };

  Pass pass() const;
  void fill();
  void take();
  void reduce(const IpcTaking& taking, std::size_t offset, Range part);
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
  bool is_in_barrier_ = false;
  bool has_unmarked_work_ = false;  // in the streams, without an event behind it
  CudaEventPtr filled_;
  CudaEventPtr taken_;
  std::vector<DeviceBlockPtr> blocks_;  // results for another GPU, until they are there
};

}  // namespace hvd
