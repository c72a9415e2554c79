// One execution of a call in a program that XLA compiled: its text, its buffers for the engine, and
// its results.
#pragma once

#include <string_view>
#include <vector>

#include "bindings/engine_port.h"
#include "bindings/result_writer.h"

namespace hvd::tensorflow {

// A number that a program asks for when it runs. `text`: in the form that
// src/horovod/tensorflow/xla_ops.py writes. Throws Error for another form, and where there is no
// such number.
std::int32_t world_number(EnginePort& port, std::string_view text);

// Buffers are read and written in place, while the call runs. The last input and the last output
// are no tensors but a token, a number that puts the calls of a program into an order.
class XlaCall {
 public:
  // `text`: in the form that src/horovod/tensorflow/xla_ops.py writes. Throws Error for another
  // form.
  explicit XlaCall(std::string_view text);

  int process_set() const { return process_set_; }
  // How many inputs it has, with the token.
  std::size_t inputs() const { return requests_.size() + 1; }
  // Where they and the results are. Call it once.
  void bind(const void* const* inputs, void* const* outputs);
  // Where the token of the results is, which is never empty.
  const void* token() const;
  // The buffers are on this GPU; in host memory otherwise.
  void place_on(int device, StreamDependencyPtr dependency);
  // What to submit; valid as long as the call.
  std::vector<Submission> submissions() const;
  // Copies results that the engine allocated to XLA's buffers. Throws Error if XLA has compiled for
  // another shape.
  void store(const std::vector<Output>& outputs, ResultWriter& writer) const;

 private:
  Request request_;  // of each tensor, without dtype and shape
  int process_set_ = 0;
  int set_size_ = 0;  // ranks of the process set when XLA compiled
  std::vector<std::int64_t> splits_;
  std::vector<Request> requests_;
  std::vector<std::int64_t> rows_;       // of the results that XLA expects, where they may differ
  std::vector<std::string_view> names_;  // one for a group, else one for each tensor
  std::vector<Tensor> tensors_;
  StreamDependencyPtr dependency_;
  void* const* outputs_ = nullptr;
  Tensor nothing_;  // of a call without tensors
};

}  // namespace hvd::tensorflow
