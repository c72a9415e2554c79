// A call in a program that XLA runs on a CUDA GPU.
#pragma once

#include "bindings/engine_port.h"
#include "bindings/jax/c_api.h"

namespace hvd::jax {

// The collective runs after the work that is in XLA's stream. Later work in the stream runs after
// the collective. This thread waits until all ranks have started the collective. It does not wait
// for the GPU. XLA goes on as soon as a handler for a GPU returns.
XLA_FFI_Error* run_on_gpu(EnginePort& port, XLA_FFI_CallFrame* frame);

}  // namespace hvd::jax
