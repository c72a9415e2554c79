// Calls in a program that XLA runs on a CUDA GPU.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "bindings/engine_port.h"

namespace hvd::tensorflow {

// See run_in_stream(). `buffers`: on the GPU, the inputs and after them the results. Returns the
// text of an error, if there is one.
std::optional<std::string> run_on_gpu(EnginePort& port, std::string_view text, cuda::Stream stream,
                                      void* const* buffers);
// Puts the number that `text` asks for into `stream`, to `at` on its GPU. See world_number().
std::optional<std::string> put_world_number(EnginePort& port, std::string_view text,
                                            cuda::Stream stream, void* at);

}  // namespace hvd::tensorflow
