// Calls in programs that XLA runs on CUDA GPUs: they work in the order of XLA's stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>

#include "bindings/engine_port.h"
#include "bindings/result_writer.h"
#include "bindings/submissions.h"

namespace hvd {

// Puts numbers into `stream`, to `at` on its GPU. The GPU gets them as fills, so no host memory has
// to outlive this call. Ranks mostly send each other the same number of rows: runs of equal numbers
// are one fill.
inline void put_numbers(const CudaDriver& driver, void* at, std::span<const std::int32_t> numbers,
                        cuda::Stream stream) {
  cuda::Address to = cuda::address_of(at);
  while (!numbers.empty()) {
    const auto end = std::ranges::find_if(
        numbers, [first = numbers.front()](std::int32_t number) { return number != first; });
    const auto count = static_cast<std::size_t>(end - numbers.begin());
    driver.fill(to, numbers.front(), count, stream);
    to += count * sizeof(std::int32_t);
    numbers = numbers.subspan(count);
  }
}

class StreamWriter final : public ResultWriter {
 public:
  StreamWriter(const Departure& departure, cuda::Stream stream)
      : departure_(departure), stream_(stream) {}

  void copy(void* to, const Output& from, std::size_t size_bytes) override {
    if (from.block != nullptr) {
      from.block->copy_to(cuda::address_of(to), size_bytes, stream_);
      return;
    }
    // Numbers about the result are in host memory: received splits, the last rank to join.
    const CudaDriver& driver = departure_.gpu->driver();
    const CurrentDevice current(driver, departure_.device);
    put_numbers(driver, to,
                {reinterpret_cast<const std::int32_t*>(from.bytes.get()),
                 size_bytes / sizeof(std::int32_t)},
                stream_);
  }
  void clear(void* at, std::size_t size_bytes) override {
    const CudaDriver& driver = departure_.gpu->driver();
    const CurrentDevice current(driver, departure_.device);
    driver.clear(cuda::address_of(at), size_bytes, stream_);
  }

 private:
  const Departure& departure_;
  const cuda::Stream stream_;
};

inline Departure depart(EnginePort& port, cuda::Stream stream, const void* memory) {
  auto departed = port.depart(stream, cuda::address_of(memory));
  if (const auto* error = std::get_if<Error>(&departed)) throw Error(*error);
  return std::get<Departure>(std::move(departed));
}

// Runs a call of a program. It starts after the work that is in `stream`; later work in the stream
// runs after it. This thread waits until all ranks have started the collective. It does not wait
// for the GPU. XLA goes on as soon as a call on a GPU returns. `memory`: any on the GPU. Throws
// Error.
template <typename Job>
void run_in_stream(EnginePort& port, Job& job, cuda::Stream stream, const void* memory) {
  const Departure departure = depart(port, stream, memory);
  job.place_on(departure.device, departure.dependency);
  EnginePort::Result result = run_to_end(port, job.process_set(), job.submissions());
  for (const StreamDependencyPtr& dependency : result.dependencies) dependency->arrive();
  if (result.error) throw Error(*result.error);
  StreamWriter writer(departure, stream);
  job.store(result.outputs, writer);
}

}  // namespace hvd
