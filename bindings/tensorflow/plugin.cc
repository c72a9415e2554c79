// The engine as TensorFlow operations: a library that tf.load_op_library opens. One binary serves
// every version of TensorFlow that has the functions of c_api.h.
#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "bindings/engine_port.h"
#include "bindings/tensorflow/job.h"
#include "bindings/tensorflow/ops.h"
#include "bindings/tensorflow/port.h"
#include "core/quiet_thread.h"

namespace hvd::tensorflow {

namespace {

// TensorFlow passes no pointer of ours to kernels.
std::atomic<EnginePort*> port{nullptr};

// A callback that can be called after the kernel's function has returned. The pointer of the C API
// is valid only during the call. It points at a std::function, which can be copied. The API does
// not promise that, so HorovodSelfTest checks it before it is used.
class DeferredDone {
 public:
  explicit DeferredDone(TF_AsyncOpKernelDoneCallback* done)
      : function_(*reinterpret_cast<std::function<void()>*>(done)) {}
  void operator()() const { function_(); }

 private:
  std::function<void()> function_;
};

using Kernel = std::shared_ptr<const Spec>;

template <Kind kKind>
void* create(TF_OpKernelConstruction* construction) {
  auto spec = read_spec(kKind, construction);
  return spec == nullptr ? nullptr : new Kernel(std::move(spec));
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void run(const std::shared_ptr<Job>& job, int set, TF_AsyncOpKernelDoneCallback* done) {
  auto result = port.load()->run(set, job->submissions(), [job](const EnginePort::Result&) {});
  if (result) {
    job->finish(std::move(*result));
  } else {
    job->cancel();
  }
  TF_RunAsyncOpKernelDoneCallback(done);
}

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const Kernel& spec = *static_cast<const Kernel*>(kernel);
  const auto job = std::make_shared<Job>(spec, context);
  if (!job->prepare()) {
    TF_RunAsyncOpKernelDoneCallback(done);
  } else if (spec->is_blocking) {
    run(job, spec->process_set, done);
  } else {
    port.load()->start(spec->process_set, job->submissions(),
                       [job, done = DeferredDone(done)](EnginePort::Result result) {
                         job->finish(std::move(result));
                         done();
                       });
  }
}

void set_scalar(TF_OpKernelContext* context, std::int32_t value) {
  const Status status;
  const TensorHandle output(
      TF_ForwardInputOrAllocateOutput(context, nullptr, 0, 0, nullptr, 0, nullptr, status.get()));
  if (!status.ok()) {
    TF_OpKernelContext_Failure(context, status.get());
    return;
  }
  *static_cast<std::int32_t*>(TF_TensorData(output.get())) = value;
}

void compute_token(void*, TF_OpKernelContext* context) { set_scalar(context, 0); }

struct WorldNumberSpec {
  std::int64_t what = 0;
  std::int64_t process_set = 0;
};

void* create_world_number(TF_OpKernelConstruction* construction) {
  const Status status;
  auto spec = std::make_unique<WorldNumberSpec>();
  TF_OpKernelConstruction_GetAttrInt64(construction, "what", &spec->what, status.get());
  TF_OpKernelConstruction_GetAttrInt64(construction, "process_set_id", &spec->process_set,
                                       status.get());
  if (status.ok()) return spec.release();
  TF_OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void destroy_world_number(void* spec) { delete static_cast<WorldNumberSpec*>(spec); }

void compute_world_number(void* kernel, TF_OpKernelContext* context) {
  const auto& spec = *static_cast<const WorldNumberSpec*>(kernel);
  const int set = static_cast<int>(spec.process_set);
  const std::optional<int> value = port.load()->number(static_cast<WorldNumber>(spec.what), set);
  if (value) {
    set_scalar(context, *value);
    return;
  }
  const Status status(TF_INVALID_ARGUMENT, no_answer_about(set));
  TF_OpKernelContext_Failure(context, status.get());
}

// Ends a node from another thread, after its function has returned.
void compute_self_test(void*, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  start_detached([context, done = DeferredDone(done)] {
    const Status status;
    TF_Tensor* input = nullptr;
    TF_GetInput(context, 0, &input, status.get());
    const TensorHandle value(input);
    if (status.ok()) TF_SetOutput(context, 0, value.get(), status.get());
    if (!status.ok()) TF_OpKernelContext_Failure(context, status.get());
    done();
  });
}

void register_kernel(const char* op, TF_KernelBuilder* builder, TF_Status* status) {
  if (TF_GetCode(status) == TF_OK) TF_RegisterKernelBuilder(op, builder, status);
}

// TensorFlow's C API passes no pointer of ours to a kernel's constructor. So each kind has its own
// function.
template <std::size_t... kKinds>
void register_collectives(std::index_sequence<kKinds...>, TF_Status* status) {
  const auto add = [status](const Collective& collective, auto* create_kernel) {
    if (!is_op(collective)) return;
    const std::string op = op_name(collective);
    register_kernel(op.c_str(),
                    TF_NewAsyncKernelBuilder(op.c_str(), "CPU", create_kernel, compute, destroy),
                    status);
  };
  (add(kCollectives[kKinds], create<static_cast<Kind>(kKinds)>), ...);
}

void register_kernels(TF_Status* status) {
  register_collectives(std::make_index_sequence<kCollectives.size()>(), status);
  register_kernel(kTokenOp, TF_NewKernelBuilder(kTokenOp, "CPU", nullptr, compute_token, nullptr),
                  status);
  register_kernel(kWorldNumberOp,
                  TF_NewKernelBuilder(kWorldNumberOp, "CPU", create_world_number,
                                      compute_world_number, destroy_world_number),
                  status);
  register_kernel(kSelfTestOp,
                  TF_NewAsyncKernelBuilder(kSelfTestOp, "CPU", nullptr, compute_self_test, nullptr),
                  status);
}

// tf.load_op_library finds the operations that are registered while the library is opened.
std::string register_all() {
  const Status status;
  register_ops(status.get());
  if (status.ok()) register_kernels(status.get());
  return status.ok() ? "" : TF_Message(status.get());
}

const std::string registration_error = register_all();

}  // namespace

EnginePort& attached_port() { return *port.load(); }

}  // namespace hvd::tensorflow

// Returns the error of opening the library; "" if there was none. `port` must stay valid as long as
// the process uses TensorFlow.
extern "C" [[gnu::visibility("default")]] const char* horovod_tensorflow_attach(
    hvd::EnginePort* port) {
  hvd::tensorflow::port.store(port);
  return hvd::tensorflow::registration_error.c_str();
}
