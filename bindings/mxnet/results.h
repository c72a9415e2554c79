// Results whose shape the engine finds out, from the moment the engine has them until Python asks
// for them.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/mxnet/api.h"
#include "core/dtype.h"
#include "runtime/output.h"

namespace hvd::mxnet {

// Any thread.
class Results {
 public:
  explicit Results(std::vector<Dtype> dtypes) : dtypes_(std::move(dtypes)) {}

  void put(std::vector<Output> outputs);
  void fail(const std::string& text);
  // A new array over the memory of one of the results, each once. Throws std::runtime_error when
  // there is none, because the operation failed or MXNet did not even start it.
  Array take(const Api& api, std::size_t index);

 private:
  Output output(std::size_t index);

  const std::vector<Dtype> dtypes_;
  std::mutex mutex_;
  std::vector<Output> outputs_;
  std::string failure_ =
      "the operation did not run: one of its arrays, or an earlier one of the "
      "same name, has failed";
};

}  // namespace hvd::mxnet
