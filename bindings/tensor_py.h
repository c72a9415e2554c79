// A framework's tensor as the engine sees it.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/dlpack.h"
#include "runtime/engine.h"

namespace hvd {

// Reads tensors of one framework through its exchange table.
class TensorReader {
 public:
  // `capsule`: the value of `__dlpack_c_exchange_api__`. Throws when the table is of no use here.
  explicit TensorReader(nanobind::handle capsule);

  // Fills dtype, shape and address. Throws Error(kInvalidArgument) for tensors that are not dense
  // row-major host memory of a supported dtype; `operation` begins the text.
  std::byte* read(nanobind::handle tensor, Request& request) const;

 private:
  const dlpack::ExchangeApi* api_;
};

}  // namespace hvd
