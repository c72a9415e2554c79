// One execution of a node: its tensors for the engine, and its results.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/engine_port.h"
#include "bindings/tensorflow/spec.h"

namespace hvd::tensorflow {

// Tensors are read and written in TensorFlow's memory. The job keeps them alive, so it must live as
// long as the engine works on them.
class Job {
 public:
  Job(std::shared_ptr<const Spec> spec, TF_OpKernelContext* context)
      : owner_(std::move(spec)), spec_(*owner_), context_(context) {}

  // False when the inputs are wrong; TensorFlow has been told.
  bool prepare();
  // What to submit; valid as long as the job.
  std::vector<Submission> submissions() const;
  // Gives TensorFlow the results or the error, and releases the tensors. Call it once, before the
  // node is reported as done.
  void finish(EnginePort::Result result);
  // After a wait was given up. The tensors stay until the job is destroyed.
  void cancel();

 private:
  bool add_input(int index);
  bool add_output(int index);
  bool add_splits();
  bool set_produced(std::vector<Output>& outputs);
  bool fail(TF_Code code, const std::string& text);
  bool fail(const Status& status);

  const std::shared_ptr<const Spec> owner_;  // the kernel may be gone before a cancelled job
  const Spec& spec_;
  TF_OpKernelContext* context_;
  std::vector<TensorHandle> inputs_;
  std::vector<TensorHandle> outputs_;
  std::vector<Request> requests_;
  std::vector<Tensor> tensors_;
  std::vector<std::int64_t> splits_;
};

}  // namespace hvd::tensorflow
