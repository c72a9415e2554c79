// The engine as calls of XLA programs: handlers that jax.ffi registers. One binary serves every
// jaxlib that accepts handlers of the version in c_api.h.
#include <atomic>
#include <memory>

#include "bindings/engine_port.h"
#include "bindings/jax/c_api.h"
#include "bindings/jax/gpu_call.h"
#include "bindings/jax/job.h"
#include "bindings/jax/promise.h"
#include "core/quiet_thread.h"

namespace hvd::jax {

namespace {

// XLA passes no pointer of ours to handlers.
std::atomic<EnginePort*> port{nullptr};

// Whether XLA only asks for the version of its interface that the handler was made for.
bool is_query(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata.api_version = {.major_version = kXlaFfiMajor, .minor_version = kXlaFfiMinor};
  metadata.traits = 0;
  return true;
}

void finish(const Job& job, const Promise& promise, const EnginePort::Result& result) {
  try {
    if (result.error) throw Error(*result.error);
    HostWriter writer;
    job.store(result.outputs, writer);
    promise.available();
  } catch (const Error& error) {
    port.load()->keep_failure(error);
    promise.fail(error);
  }
}

XLA_FFI_Error* run(XLA_FFI_CallFrame* frame) try {
  const auto job = std::make_shared<const Job>(frame);
  const Promise promise(frame->api);
  if (promise.future() == nullptr) return promise.error();
  frame->future = promise.future();
  port.load()->start(
      job->process_set(), job->submissions(),
      [job, promise](const EnginePort::Result& result) { finish(*job, promise, result); });
  return nullptr;
} catch (const Error& error) {
  return make_error(frame->api, error);
}

// Returns its argument from another thread, after the call has returned.
XLA_FFI_Error* run_self_test(XLA_FFI_CallFrame* frame) {
  const auto& in = *static_cast<const XLA_FFI_Buffer*>(frame->args.args[0]);
  auto& out = *static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0]);
  const Promise promise(frame->api);
  if (promise.future() == nullptr) return promise.error();
  frame->future = promise.future();
  start_detached([&in, &out, promise] {
    *static_cast<std::int32_t*>(out.data) = *static_cast<const std::int32_t*>(in.data);
    promise.available();
  });
  return nullptr;
}

}  // namespace
}  // namespace hvd::jax

// `port` outlives the process' use of JAX.
extern "C" [[gnu::visibility("default")]] void horovod_jax_attach(hvd::EnginePort* port) {
  hvd::jax::port.store(port);
}

extern "C" [[gnu::visibility("default")]] XLA_FFI_Error* horovod_jax_collective(
    XLA_FFI_CallFrame* frame) {
  return hvd::jax::is_query(frame) ? nullptr : hvd::jax::run(frame);
}

extern "C" [[gnu::visibility("default")]] XLA_FFI_Error* horovod_jax_collective_on_cuda(
    XLA_FFI_CallFrame* frame) {
  if (hvd::jax::is_query(frame)) return nullptr;
  return hvd::jax::run_on_gpu(*hvd::jax::port.load(), frame);
}

extern "C" [[gnu::visibility("default")]] XLA_FFI_Error* horovod_jax_self_test(
    XLA_FFI_CallFrame* frame) {
  return hvd::jax::is_query(frame) ? nullptr : hvd::jax::run_self_test(frame);
}
