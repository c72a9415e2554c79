// Another library, such as MPI or Gloo, that moves the bytes of a process set.
#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.h"
#include "core/reduce_op.h"

namespace hvd {

// Collectives over contiguous memory, one at a time. Each method starts one. All ranks of the set
// start the same ones in the same order. The memory stays valid until test() is true, or until the
// world fails. After a failure test() is not called again, and the data plane must not touch that
// memory any more. Sizes are in bytes, by set rank. Called by the holder of the progress role, with
// no lock held. An Error that a method throws ends the world.
class DataPlane {
 public:
  virtual ~DataPlane() = default;

  // Whether it can reduce this dtype with this op: Sum, Min, Max or Product.
  virtual bool reduces(Dtype dtype, ReduceOp op) const = 0;

  // In place.
  virtual void allreduce(std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) = 0;
  virtual void broadcast(std::byte* data, std::size_t size_bytes, int root) = 0;
  // The ranks' data lies in `out` in rank order.
  virtual void allgather(const std::byte* in, std::byte* out,
                         std::span<const std::size_t> sizes) = 0;
  // The parts for the ranks, and those from the ranks, lie in rank order.
  virtual void alltoall(const std::byte* in, std::span<const std::size_t> in_sizes, std::byte* out,
                        std::span<const std::size_t> out_sizes) = 0;
  virtual void barrier() = 0;

  // Whether the last collective is complete on this rank. Never blocks.
  virtual bool test() = 0;
};

}  // namespace hvd
