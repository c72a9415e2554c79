#include "gpu/stream_dependency.h"

#include <utility>

#include "core/error.h"

namespace hvd {

StreamDependency::StreamDependency(std::shared_ptr<Gpu> gpu, CurrentStream current)
    : gpu_(std::move(gpu)), current_(std::move(current)) {}

void StreamDependency::depart_from(int device) {
  if (origins_.contains(device)) return;
  const CudaDriver& driver = gpu_->driver();
  const cuda::Stream stream = current_(device);
  auto ready = std::make_shared<CudaEvent>(driver, device);
  int capture = cuda::kNotCapturing;
  {
    const CurrentDevice current(driver, device);
    driver.call(driver.functions().stream_is_capturing, stream, &capture);
  }
  if (capture != cuda::kNotCapturing) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the current stream of GPU " + std::to_string(device) +
            " is being captured into a CUDA graph, but a graph cannot contain the agreement "
            "of ranks; call Horovod outside of the capture");
  }
  ready->record(stream);
  origins_.emplace(device, Origin{.stream = stream, .ready = std::move(ready)});
}

void StreamDependency::add_done(CudaEventPtr event) {
  if (done_.empty() || done_.back() != event) done_.push_back(std::move(event));
}

// Holds back the stream at the time of the submission, too: an allocator may reuse the tensors'
// memory there.
void StreamDependency::arrive() const {
  for (const auto& [device, origin] : origins_) {
    const cuda::Stream now = current_(device);
    const CurrentDevice current(gpu_->driver(), device);
    for (const CudaEventPtr& event : done_) {
      event->hold_back(now);
      if (now != origin.stream) event->hold_back(origin.stream);
    }
  }
}

}  // namespace hvd
