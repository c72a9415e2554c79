// The engine as calls of programs that TensorFlow's XLA compiles for the CPU. All versions of
// TensorFlow since 2.15 have one kind of such calls (API_VERSION_STATUS_RETURNING_UNIFIED). They
// find the targets in a registry without a C interface, so its two functions are found by their C++
// names. src/horovod/tensorflow/xla_ops.py checks the assumptions of this file.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "bindings/error_names.h"
#include "bindings/submissions.h"
#include "bindings/tensorflow/port.h"
#include "bindings/tensorflow/xla_call.h"
#include "core/shared_library.h"

namespace hvd::tensorflow {

namespace {

// As in xla/service/custom_call_status_internal.h. No message means success.
struct XlaStatus {
  std::optional<std::string> message;
};

using Target = void(void* output, const void** inputs, const char* text, std::size_t text_size,
                    XlaStatus* status);

void run_collective(void* outputs, const void** inputs, const char* text, std::size_t text_size,
                    XlaStatus* status) {
  try {
    const XlaCall call({text, text_size}, inputs, static_cast<void**>(outputs));
    EnginePort::Result result = run_to_end(attached_port(), call.process_set(), call.submissions());
    if (result.error) throw Error(*result.error);
    call.store(result.outputs);
  } catch (const Error& error) {
    attached_port().keep_failure(error);
    status->message = text_for_python(error);
  }
}

// `text`: see `WorldQuestion`.
void run_world_number(void* output, const void**, const char* text, std::size_t text_size,
                      XlaStatus* status) {
  try {
    const auto [what, set] = read_world_question({text, text_size});
    const std::optional<int> value = attached_port().number(what, set);
    if (!value) {
      throw Error(ErrorCode::kInvalidArgument, no_answer_about(set));
    }
    *static_cast<std::int32_t*>(output) = *value;
  } catch (const Error& error) {
    status->message = text_for_python(error);
  }
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
  void add(const char* name, Target* target) const {
    add_(global_(), name, reinterpret_cast<void*>(target), "Host");
  }

 private:
  const SharedLibrary library_;
  void* (*global_)() = nullptr;
  void (*add_)(void* registry, const std::string& name, void* target,
               const std::string& platform) = nullptr;
};

std::optional<std::string> register_targets() {
  try {
    const Registry registry;
    registry.add("horovod_collective", run_collective);
    registry.add("horovod_world_number", run_world_number);
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
