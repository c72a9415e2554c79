#include "bindings/tensorflow/gpu_call.h"

#include "bindings/error_names.h"
#include "bindings/stream_calls.h"
#include "bindings/tensorflow/xla_call.h"

namespace hvd::tensorflow {

std::optional<std::string> run_on_gpu(EnginePort& port, std::string_view text, cuda::Stream stream,
                                      void* const* buffers) {
  try {
    XlaCall call(text);
    call.bind(buffers, buffers + call.inputs());
    run_in_stream(port, call, stream, call.token());
    return std::nullopt;
  } catch (const Error& error) {
    port.keep_failure(error);
    return text_for_python(error);
  }
}

std::optional<std::string> put_world_number(EnginePort& port, std::string_view text,
                                            cuda::Stream stream, void* at) {
  try {
    const std::int32_t number = world_number(port, text);
    const Departure departure = depart(port, stream, at);
    const CudaDriver& driver = departure.gpu->driver();
    const CurrentDevice current(driver, departure.device);
    driver.fill(cuda::address_of(at), number, 1, stream);
    return std::nullopt;
  } catch (const Error& error) {
    return text_for_python(error);
  }
}

}  // namespace hvd::tensorflow
