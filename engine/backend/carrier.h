// Somebody else's engine, an MPI library or Gloo, as what carries the bytes of a process set.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/dtype.h"
#include "core/reduce_op.h"

namespace hvd {

// Collectives over contiguous memory, one at a time. Each method starts one; all ranks of the set
// start the same ones in the same order. What it was given stays until test() is true, or until
// the world fails: test() is not called again then, and nothing may touch that memory. Sizes are in
// bytes, by set rank. Called by the holder of the progress role, with no lock held; may throw
// Error, which is the end of the world.
class Carrier {
 public:
  virtual ~Carrier() = default;

  virtual const std::string& name() const = 0;
  // Is it able to reduce these? Asked for Sum, Min, Max and Product.
  virtual bool reduces(Dtype dtype, ReduceOp op) const = 0;

  // In place.
  virtual void allreduce(std::byte* data, std::size_t count, Dtype dtype, ReduceOp op) = 0;
  virtual void broadcast(std::byte* data, std::size_t size_bytes, int root) = 0;
  // What the ranks give lies in `out` one after the other.
  virtual void allgather(const std::byte* in, std::byte* out,
                         std::span<const std::size_t> sizes) = 0;
  // Parts for the ranks, and from them, one after the other.
  virtual void alltoall(const std::byte* in, std::span<const std::size_t> in_sizes, std::byte* out,
                        std::span<const std::size_t> out_sizes) = 0;
  virtual void barrier() = 0;

  // Is the last one complete on this rank? Never blocks.
  virtual bool test() = 0;
};

}  // namespace hvd
