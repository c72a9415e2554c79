// The reductions of a bucket as NCCL gets them: plain sums and the like, in few calls.
//
// NCCL multiplies in the tensor's own dtype, and then cannot let the network's switches add.
// So kernels of the engine's own apply the factors. They also pack tensors below kPackedBelow into
// one buffer for each dtype and op, since every call has a cost. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/nccl_call.h"
#include "gpu/gpu_kernels.h"

namespace hvd {

// What NCCL reduces in one call.
struct NcclReduction {
  const std::byte* in;
  std::byte* out;
  std::size_t count;  // of elements
  Dtype dtype;
  nccl::RedOp op;
};

// Pieces of memory of one dtype, all with one factor.
struct ScaledMove {
  Dtype dtype;
  double factor;
  std::vector<MovedPiece> pieces;
};

class ScaledMoves {
 public:
  void add(Dtype dtype, double factor, const std::byte* from, std::byte* to, std::size_t count);
  std::span<const ScaledMove> list() const { return list_; }
  void clear() { list_.clear(); }

 private:
  std::vector<ScaledMove> list_;
};

// All three run in one stream, in this order.
struct ReductionPlan {
  ScaledMoves before;
  std::vector<NcclReduction> calls;
  ScaledMoves after;
};

// Bytes. A GPU copies so much there and back in about the time that a call of NCCL takes at least.
inline constexpr std::size_t kPackedBelow = 16UL << 20;

// The same on all ranks.
std::size_t packed_bytes(std::span<const NcclCall> calls);
// Allreduces over `size` ranks. `buffer`: packed_bytes() on the device.
ReductionPlan plan_allreduces(std::span<const NcclCall> calls, int size, std::byte* buffer);

}  // namespace hvd
