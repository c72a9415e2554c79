// A framework's tensor as the engine sees it.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/dlpack.h"
#include "bindings/streams_py.h"
#include "runtime/engine.h"

namespace hvd {

// Reads tensors of one framework through its exchange table.
class TensorReader final : public Streams {
 public:
  // `capsule`: the value of `__dlpack_c_exchange_api__`. Throws when the table is of no use here.
  explicit TensorReader(nanobind::handle capsule);

  struct Located {
    std::byte* address;
    int device;  // kHostDevice, or CUDA's number of a GPU
  };
  // Fills dtype and shape, and says where the tensor is. Throws Error(kInvalidArgument) for tensors
  // that are not dense row-major memory, of the host or a CUDA GPU, of a supported dtype;
  // `operation` begins the text.
  Located read(nanobind::handle tensor, Request& request) const;

  StreamDependency::CurrentStream current_stream() const override;

 private:
  const dlpack::ExchangeApi* api_;
};

}  // namespace hvd
