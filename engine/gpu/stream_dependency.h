// What a submission of GPU tensors waits for, and what waits for the submission.
//
// The caller makes it when it submits. It marks the caller's streams, and the collective starts
// when the GPU has reached the marks. The thread that runs the collective adds events that follow
// it. When the operation is done, the caller's streams wait for these events. No thread waits for
// the GPU.
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

  // Tensors on `device` are ready when its current stream reaches this point. Call it once for each
  // device. Throws Error(kInvalidArgument) while the stream is being captured into a graph.
  void depart_from(int device);

  // For the thread that runs the operation.
  const CudaEvent& ready(int device) const { return *origins_.at(device).ready; }
  void add_done(CudaEventPtr event);

  // Call it when the operation is done for the engine. Later work in the caller's streams starts
  // after the operation.
  void arrive() const;

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
