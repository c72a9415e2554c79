#include "bindings/jax/gpu_call.h"

#include <variant>

#include "bindings/jax/job.h"
#include "bindings/jax/promise.h"
#include "bindings/submissions.h"

namespace hvd::jax {

namespace {

class StreamWriter final : public Writer {
 public:
  StreamWriter(const Departure& departure, cuda::Stream stream)
      : departure_(departure), stream_(stream) {}

  void copy(void* to, Output& from, std::size_t size_bytes) override {
    from.block->copy_to(cuda::address_of(to), size_bytes, stream_);
  }
  void clear(void* at, std::size_t size_bytes) override {
    const CudaDriver& driver = departure_.gpu->driver();
    const CurrentDevice current(driver, departure_.device);
    driver.clear(cuda::address_of(at), size_bytes, stream_);
  }

 private:
  const Departure& departure_;
  const cuda::Stream stream_;
};

XLA_FFI_Error* refuse(XLA_FFI_CallFrame* frame, const std::string& text) {
  return make_error(frame->api, Error(ErrorCode::kInvalidArgument, text));
}

XLA_FFI_Error* refuse(EnginePort& port, XLA_FFI_CallFrame* frame, const Error& error) {
  port.keep_failure(error);
  return make_error(frame->api, error);
}

// The last argument is never empty; see primitive.py.
std::uint64_t some_address(const XLA_FFI_CallFrame* frame) {
  const auto& last = *static_cast<const XLA_FFI_Buffer*>(frame->args.args[frame->args.size - 1]);
  return reinterpret_cast<std::uint64_t>(last.data);
}

XLA_FFI_Error* run_job(EnginePort& port, XLA_FFI_CallFrame* frame, Job& job, cuda::Stream stream) {
  auto departed = port.depart(stream, some_address(frame));
  if (const auto* error = std::get_if<Error>(&departed)) return refuse(port, frame, *error);
  const Departure& departure = std::get<Departure>(departed);
  job.place_on(departure.device, departure.dependency);
  EnginePort::Result result = run_to_end(port, job.process_set(), job.submissions());
  for (const StreamDependencyPtr& dependency : result.dependencies) dependency->arrive();
  if (result.error) return refuse(port, frame, *result.error);
  StreamWriter writer(departure, stream);
  if (const auto misfit = job.store(result.outputs, writer)) return refuse(frame, *misfit);
  return nullptr;
}

}  // namespace

XLA_FFI_Error* run_on_gpu(EnginePort& port, XLA_FFI_CallFrame* frame) {
  XLA_FFI_Stream_Get_Args args{.ctx = frame->ctx, .stream = nullptr};
  if (XLA_FFI_Error* const error = frame->api->Stream_Get(&args)) return error;
  Job job(frame);
  if (job.refusal()) return refuse(frame, *job.refusal());
  try {
    return run_job(port, frame, job, static_cast<cuda::Stream>(args.stream));
  } catch (const Error& error) {  // of CUDA
    return refuse(port, frame, error);
  }
}

}  // namespace hvd::jax
