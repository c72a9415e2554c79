// A framework's tensor as the engine sees it.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/dlpack.h"
#include "bindings/streams_py.h"

namespace hvd {

// Reads tensors of one framework through its exchange table.
class TensorReader final : public Streams {
 public:
  // `capsule`: the value of `__dlpack_c_exchange_api__`. Throws if the table cannot be used.
  // `explain`: says of a tensor that the table does not give what to do about it; None where that
  // is not known. Like the function of PythonStreams it is never released.
  TensorReader(nanobind::handle capsule, nanobind::callable explain);

  struct Located {
    std::byte* address;
    int device;  // kHostDevice, or CUDA's number of a GPU
  };
  // Sets dtype and shape, and returns where the tensor is. Throws Error(kInvalidArgument) unless
  // the tensor is dense row-major memory of the host or a CUDA GPU, with a supported dtype, which
  // the request's operation takes.
  Located read(nanobind::handle tensor, Request& request) const;

  StreamDependency::CurrentStream current_stream() const override;

 private:
  Error unreadable(nanobind::handle object) const;

  const dlpack::ExchangeApi* api_;
  const nanobind::handle explain_;
};

}  // namespace hvd
