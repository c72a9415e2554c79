// The engine as calls of programs that TensorFlow's XLA compiles, for the CPU and for CUDA GPUs.
// All versions of TensorFlow since 2.15 have one kind of such calls
// (API_VERSION_STATUS_RETURNING_UNIFIED). They find the targets in a registry without a C
// interface, so its two functions are found by their C++ names. src/horovod/tensorflow/xla_ops.py
// checks the assumptions of this file.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "bindings/error_names.h"
#include "bindings/submissions.h"
#include "bindings/tensorflow/gpu_call.h"
#include "bindings/tensorflow/port.h"
#include "bindings/tensorflow/xla_call.h"
#include "core/shared_library.h"

namespace hvd::tensorflow {

namespace {

// As in xla/service/custom_call_status_internal.h. No message means success.
struct XlaStatus {
  std::optional<std::string> message;
};

// On the CPU a call with one result gets its address, others an array of addresses. On a GPU one
// array has the addresses of all inputs and, after them, of all results.
using HostTarget = void(void* output, const void** inputs, const char* text, std::size_t text_size,
                        XlaStatus* status);
using CudaTarget = void(cuda::Stream stream, void** buffers, const char* text,
                        std::size_t text_size, XlaStatus* status);

void run_collective(void* outputs, const void** inputs, const char* text, std::size_t text_size,
                    XlaStatus* status) {
  try {
    XlaCall call({text, text_size});
    call.bind(inputs, static_cast<void**>(outputs));
    EnginePort::Result result = run_to_end(attached_port(), call.process_set(), call.submissions());
    if (result.error) throw Error(*result.error);
    HostWriter writer;
    call.store(result.outputs, writer);
  } catch (const Error& error) {
    attached_port().keep_failure(error);
    status->message = text_for_python(error);
  }
}

void run_collective_on_cuda(cuda::Stream stream, void** buffers, const char* text,
                            std::size_t text_size, XlaStatus* status) {
  status->message = run_on_gpu(attached_port(), {text, text_size}, stream, buffers);
}

// `text`: see `WorldQuestion`.
void run_world_number(void* output, const void**, const char* text, std::size_t text_size,
                      XlaStatus* status) {
  try {
    *static_cast<std::int32_t*>(output) = world_number(attached_port(), {text, text_size});
  } catch (const Error& error) {
    status->message = text_for_python(error);
  }
}

void run_world_number_on_cuda(cuda::Stream stream, void** buffers, const char* text,
                              std::size_t text_size, XlaStatus* status) {
  status->message = put_world_number(attached_port(), {text, text_size}, stream, buffers[0]);
}

// Returns its argument. Fails with the text, if there is one.
void run_self_test(void* output, const void** inputs, const char* text, std::size_t text_size,
                   XlaStatus* status) {
  std::memcpy(output, inputs[0], sizeof(std::int32_t));
  if (text_size != 0) status->message = std::string(text, text_size);
}

class Registry {
 public:
  Registry() : library_("libtensorflow_cc.so.2", Loading::kNever) {
    library_.find("_ZN3xla24CustomCallTargetRegistry6GlobalEv", global_);
    library_.find(
        "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_string"
        "IcSt11char_traitsIcESaIcEEEPvS8_",
        add_);
  }
  void add(const char* name, HostTarget* target) const { add(name, target, "Host"); }
  void add(const char* name, CudaTarget* target) const { add(name, target, "CUDA"); }

 private:
  template <typename Target>
  void add(const char* name, Target* target, const char* platform) const {
    add_(global_(), name, reinterpret_cast<void*>(target), platform);
  }

  const SharedLibrary library_;
  void* (*global_)() = nullptr;
  void (*add_)(void* registry, const std::string& name, void* target,
               const std::string& platform) = nullptr;
};

std::optional<std::string> register_targets() {
  try {
    const Registry registry;
    registry.add("horovod_collective", run_collective);
    registry.add("horovod_collective", run_collective_on_cuda);
    registry.add("horovod_world_number", run_world_number);
    registry.add("horovod_world_number", run_world_number_on_cuda);
    registry.add("horovod_self_test", run_self_test);
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace
}  // namespace hvd::tensorflow

// Lets compiled programs call the plugin. Call it once. Returns whether that is possible; else
// `reason` has the reason.
extern "C" [[gnu::visibility("default")]] bool horovod_tensorflow_register_xla(
    char* reason, std::size_t reason_size) {
  const std::optional<std::string> failure = hvd::tensorflow::register_targets();
  if (failure) {
    const std::size_t size = std::min(failure->size(), reason_size - 1);
    std::memcpy(reason, failure->data(), size);
    reason[size] = '\0';
  }
  return !failure;
}
