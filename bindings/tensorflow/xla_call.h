// One execution of a call in a program that XLA compiled: what it says, its buffers on the way into
// the engine, and the results on the way out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/engine_port.h"

namespace hvd::tensorflow {

// A number that a program asks for when it runs.
struct WorldQuestion {
  WorldNumber what;
  int process_set;
};

// Throws Error where `text` is not what src/horovod/tensorflow/xla_calls.py writes.
WorldQuestion read_world_question(std::string_view text);

// Buffers are read and written where XLA has them, while the call runs. The last input and the last
// output are no tensors: they only put the calls of a program into an order.
class XlaCall {
 public:
  // `text`: what src/horovod/tensorflow/xla_calls.py writes. Throws Error where it is not that.
  XlaCall(std::string_view text, const void* const* inputs, void* const* outputs);

  int process_set() const { return process_set_; }
  // What to submit; valid as long as the call.
  std::vector<Submission> submissions() const;
  // Copies what the engine allocated to where XLA wants it. Throws Error where XLA has compiled
  // for another shape.
  void store(const std::vector<Output>& outputs) const;

 private:
  void add_tensor(const Request& request, const void* input, void* output);
  void check(const std::vector<std::int64_t>& shape, std::int64_t rows, std::size_t name) const;

  Request request_;  // of each tensor, but for dtype and shape
  int process_set_ = 0;
  int set_size_ = 0;  // for which XLA has compiled
  std::vector<std::int64_t> splits_;
  std::vector<Request> requests_;
  std::vector<Tensor> tensors_;
  std::vector<std::int64_t> rows_;       // of the results that XLA expects, where they may differ
  std::vector<std::string_view> names_;  // one for a group, else one for each tensor
  void* const* outputs_;
  Tensor nothing_;  // of a call without tensors
};

}  // namespace hvd::tensorflow
