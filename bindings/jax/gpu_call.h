// A call in a program that XLA runs on a CUDA GPU.
#pragma once

#include "bindings/engine_port.h"
#include "bindings/jax/c_api.h"

namespace hvd::jax {

// See run_in_stream().
XLA_FFI_Error* run_on_gpu(EnginePort& port, XLA_FFI_CallFrame* frame);

}  // namespace hvd::jax
