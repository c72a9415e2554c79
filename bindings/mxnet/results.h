// Results that the engine allocates. They are kept from the end of the operation until Python asks
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
  // A new array with the memory of one result. Call it once for each result. Throws
  // std::runtime_error if there is no result, because the operation failed or MXNet did not start
  // it.
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
