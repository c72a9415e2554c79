// The kernels of adasum_ptx.h on one GPU, for a fixed number of vectors.
#pragma once

#include <cstddef>

#include "core/adasum_tree.h"
#include "gpu/adasum_ptx.h"
#include "gpu/gpu_module.h"

namespace hvd {

// Where the same part of all vectors lies, in rank order.
struct AdasumParts {
  Dtype dtype = Dtype::kFloat32;
  cuda::Address from = 0;
  std::size_t stride_bytes = 0;
  std::size_t count = 0;  // elements of the part; may be 0
};

// One thread at a time. All addresses are of the device, which is current.
class AdasumKernels {
 public:
  // `vectors`: kMostAdasumVectors at most. Throws Error(kSystem) where the driver does not
  // translate them.
  AdasumKernels(const CudaDriver& driver, int device, std::size_t vectors);

  // Dot products of a tensor: doubles.
  std::size_t gram_entries() const { return vectors_ * (vectors_ + 1) / 2; }
  std::size_t weights() const { return vectors_; }  // as many doubles
  // Of memory that dots() needs for itself.
  std::size_t scratch_bytes(std::size_t count) const;

  // gram = the parts' dot products.
  void dots(const AdasumParts& parts, cuda::Address gram, cuda::Address scratch,
            cuda::Stream stream);
  // The weights of `tensors` tensors from their whole dot products, both one after the other.
  void find_weights(cuda::Address grams, std::size_t tensors, cuda::Address weights,
                    cuda::Stream stream);
  // to = the parts' sum, each times its weight and the factor.
  void sum(const AdasumParts& parts, cuda::Address weights, double factor, cuda::Address to,
           cuda::Stream stream);

 private:
  void add_up(cuda::Address from, std::size_t values, std::size_t sums, cuda::Address to,
              cuda::Stream stream);
  std::size_t dot_threads(std::size_t count) const;

  const std::size_t vectors_;
  const AdasumTree tree_;
  GpuModule module_;
};

}  // namespace hvd
