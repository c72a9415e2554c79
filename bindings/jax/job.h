// One execution of a call in a compiled program: its buffers for the engine, and its results.
#pragma once

#include <string>
#include <vector>

#include "bindings/engine_port.h"
#include "bindings/jax/c_api.h"
#include "bindings/result_writer.h"

namespace hvd::jax {

// Buffers are read and written in place. XLA keeps them until the call's future is done.
class Job {
 public:
  // Reads the call. Throws Error if it cannot run.
  explicit Job(const XLA_FFI_CallFrame* frame);

  int process_set() const { return process_set_; }
  // Its buffers are on this GPU; in host memory otherwise.
  void place_on(int device, StreamDependencyPtr dependency);
  // What to submit; valid as long as the job.
  std::vector<Submission> submissions() const;
  // Copies the results to XLA's buffers, or clears the buffers if the program wants zeros. Throws
  // Error if XLA has compiled for another shape.
  void store(const std::vector<Output>& outputs, ResultWriter& writer) const;

 private:
  // Returns the number of the kind, which is not checked.
  std::int64_t read_attributes(const XLA_FFI_Attrs& attributes);
  // `errors`: where those of a low-bit format go; null: nowhere.
  void add_tensor(const XLA_FFI_Buffer& in, const XLA_FFI_Buffer& out,
                  const XLA_FFI_Buffer* errors);

  Request request_;  // of each tensor, without dtype and shape
  int process_set_ = 0;
  bool is_zeroed_ = false;  // the program wants zeros: this rank takes part for the others only
  std::vector<std::string> names_;  // see submissions_of()
  std::string keeps_errors_;        // '1' for tensors whose errors are results, too; or empty
  std::vector<Request> requests_;
  std::vector<Tensor> tensors_;
  std::vector<const XLA_FFI_Buffer*> results_;
  StreamDependencyPtr dependency_;
};

}  // namespace hvd::jax
