// What a submission of GPU tensors waits for, and what waits for it.
//
// Made by the caller when it submits: its streams are marked there, and the collective starts when
// the GPU has come to the marks. Whoever runs the collective leaves events behind it, and when the
// operation is taken the caller's stream is held back until those. No thread waits for the GPU.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "gpu/gpu.h"

namespace hvd {

class StreamDependency {
 public:
  // The stream on which the caller's next work on `device` goes.
  using CurrentStream = std::function<cuda::Stream(int device)>;

  StreamDependency(std::shared_ptr<Gpu> gpu, CurrentStream current);

  // Tensors on `device` are there when its current stream comes here. Once for each device. Throws
  // Error(kInvalidArgument) while the stream is being captured into a graph.
  void depart_from(int device);

  // For who runs the operation, one thread at a time.
  const CudaEvent& ready(int device) const { return *origins_.at(device).ready; }
  void add_done(CudaEventPtr event);

  // When the operation is done for the engine: what the caller puts into its streams from now on
  // comes after it.
  void arrive() const;
  // Has the GPU finished it?
  bool is_finished() const;

 private:
  struct Origin {
    cuda::Stream stream;
    CudaEventPtr ready;
  };

  const std::shared_ptr<Gpu> gpu_;
  const CurrentStream current_;
  std::map<int, Origin> origins_;  // by device
  std::vector<CudaEventPtr> done_;
};
using StreamDependencyPtr = std::shared_ptr<StreamDependency>;

}  // namespace hvd
