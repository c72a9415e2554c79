// Kernels on one GPU, from PTX text that CUDA's driver translates.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "core/adasum_tree.h"
#include "gpu/adasum_ptx.h"
#include "gpu/cuda_objects.h"
#include "gpu/move_ptx.h"
#include "gpu/reduction_ptx.h"

namespace hvd {

// One thread at a time.
class GpuModule final : public DeviceObject {
 public:
  static constexpr unsigned kThreads = 256;  // of a block, at most

  // Throws Error(kSystem) where the driver does not translate the text.
  GpuModule(const CudaDriver& driver, int device, const std::string& text);
  ~GpuModule();

  // Puts a kernel into a stream of the device, which is current. It has blocks of kThreads threads,
  // or one block with fewer threads; and so many for each of `rows`. `arguments`: the addresses of
  // the arguments.
  void launch(const std::string& kernel, std::size_t threads, void** arguments, cuda::Stream stream,
              unsigned rows = 1);

 private:
  cuda::Function function_of(const std::string& kernel);

  cuda::Module module_ = nullptr;
  std::map<std::string, cuda::Function> functions_;
};

struct KernelCall {
  Dtype dtype = Dtype::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // has_reduction_kernel()
  double prescale = 1.0;         // for floats
  double postscale = 1.0;
};

// The kernels of reduction_ptx.h on one GPU. Any thread.
class ReductionKernels {
 public:
  // Throws Error(kSystem) where the driver does not translate them.
  ReductionKernels(const CudaDriver& driver, int device);

  // Puts to[i] = reduction of sources[...][i] into a stream of the device, which is current.
  // Addresses are aligned to their elements.
  void launch(const KernelCall& call, std::span<const cuda::Address> sources, cuda::Address to,
              std::size_t count, cuda::Stream stream);

 private:
  std::mutex mutex_;
  GpuModule module_;
};

// The kernels of move_ptx.h on one GPU. Any thread.
class MoveKernels {
 public:
  // Throws Error(kSystem) where the driver does not translate them.
  MoveKernels(const CudaDriver& driver, int device);

  // Puts to[i] = from[i] * factor, for all pieces, into a stream of the device, which is current.
  // The factor is for floats.
  void launch(Dtype dtype, double factor, std::span<const MovedPiece> pieces, cuda::Stream stream);

 private:
  void launch_some(Dtype dtype, double factor, std::span<const MovedPiece> pieces,
                   cuda::Stream stream);

  std::mutex mutex_;
  GpuModule module_;
};

// The same part of all vectors, in rank order.
struct AdasumParts {
  Dtype dtype = Dtype::kFloat32;
  cuda::Address from = 0;
  std::size_t stride_bytes = 0;
  std::size_t count = 0;  // elements of the part; may be 0
};

// The kernels of adasum_ptx.h on one GPU, for a fixed number of vectors. One thread at a time. All
// addresses are of the device, which is current.
class AdasumKernels {
 public:
  // `vectors`: kMostAdasumVectors at most. Throws Error(kSystem) where the driver does not
  // translate them.
  AdasumKernels(const CudaDriver& driver, int device, std::size_t vectors);

  // Dot products of a tensor: doubles.
  std::size_t gram_entries() const { return vectors_ * (vectors_ + 1) / 2; }
  // Weights of a tensor: doubles.
  std::size_t weights() const { return vectors_; }
  // The size of the scratch memory of dots().
  std::size_t scratch_bytes(std::size_t count) const;

  // gram = the parts' dot products.
  void dots(const AdasumParts& parts, cuda::Address gram, cuda::Address scratch,
            cuda::Stream stream);
  // The weights of several tensors from their complete dot products. Tensors lie one after the
  // other.
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
