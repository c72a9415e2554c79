// One execution of a call in a program that XLA compiled: its text, its buffers for the engine, and
// its results.
#pragma once

#include <string_view>
#include <vector>

#include "bindings/engine_port.h"

namespace hvd::tensorflow {

// A number that a program asks for when it runs.
struct WorldQuestion {
  WorldNumber what;
  int process_set;
};

// `text`: in the form that src/horovod/tensorflow/xla_ops.py writes. Throws Error for another form.
WorldQuestion read_world_question(std::string_view text);

// Buffers are read and written in place, while the call runs. The last input and the last output
// are not tensors: they only put the calls of a program into an order.
class XlaCall {
 public:
  // `text`: in the form that src/horovod/tensorflow/xla_ops.py writes. Throws Error for another
  // form.
  XlaCall(std::string_view text, const void* const* inputs, void* const* outputs);

  int process_set() const { return process_set_; }
  // What to submit; valid as long as the call.
  std::vector<Submission> submissions() const;
  // Copies results that the engine allocated to XLA's buffers. Throws Error if XLA has compiled for
  // another shape.
  void store(const std::vector<Output>& outputs) const;

 private:
  void add_tensor(const Request& request, const void* input, void* output);
  void check(const std::vector<std::int64_t>& shape, std::int64_t rows, std::size_t name) const;

  Request request_;  // of each tensor, without dtype and shape
  int process_set_ = 0;
  int set_size_ = 0;  // ranks of the process set when XLA compiled
  std::vector<std::int64_t> splits_;
  std::vector<Request> requests_;
  std::vector<Tensor> tensors_;
  std::vector<std::int64_t> rows_;       // of the results that XLA expects, where they may differ
  std::vector<std::string_view> names_;  // one for a group, else one for each tensor
  void* const* outputs_;
  Tensor nothing_;  // of a call without tensors
};

}  // namespace hvd::tensorflow
