#include "bindings/jax/gpu_call.h"

#include "bindings/jax/job.h"
#include "bindings/jax/promise.h"
#include "bindings/stream_calls.h"

namespace hvd::jax {

namespace {

// The last argument is never empty; see primitive.py.
const void* some_memory(const XLA_FFI_CallFrame* frame) {
  return static_cast<const XLA_FFI_Buffer*>(frame->args.args[frame->args.size - 1])->data;
}

}  // namespace

XLA_FFI_Error* run_on_gpu(EnginePort& port, XLA_FFI_CallFrame* frame) {
  XLA_FFI_Stream_Get_Args args{.ctx = frame->ctx, .stream = nullptr};
  if (XLA_FFI_Error* const error = frame->api->Stream_Get(&args)) return error;
  try {
    Job job(frame);
    run_in_stream(port, job, static_cast<cuda::Stream>(args.stream), some_memory(frame));
    return nullptr;
  } catch (const Error& error) {
    port.keep_failure(error);
    return make_error(frame->api, error);
  }
}

}  // namespace hvd::jax
