// Calls of TensorFlow's plugin as XLA makes them for a CUDA GPU, on ranks that are threads.
#include <doctest/doctest.h>

#include "bindings/tensorflow/gpu_call.h"
#include "test_port.h"

namespace hvd::test {
namespace {

// As src/horovod/tensorflow/xla_ops.py writes it, of a tensor of one dimension, or of none.
std::string text_of(Kind kind, int size, std::string_view splits, std::int64_t count,
                    std::int64_t rows) {
  const auto number = [](auto value) {
    return std::to_string(static_cast<std::int64_t>(value)) + " ";
  };
  std::string text = number(kind) + number(ReduceOp::kSum) + "0 0 1.0 1.0 0 0 " + number(size);
  text += splits;
  if (kind == Kind::kJoin) return text + "0 ";
  return text + "1 " + number(Dtype::kFloat32) + "1 " + number(count) + number(rows) + "x";
}

// Numbers on the GPU, which are no floats.
std::vector<std::int32_t> numbers_in(const DeviceFloats& memory) {
  std::vector<std::int32_t> numbers(memory.count());
  const std::vector<float> values = memory.values();
  std::memcpy(numbers.data(), values.data(), numbers.size() * sizeof(std::int32_t));
  return numbers;
}

// A call with one argument and one result, of floats.
std::string run(EnginePort& port, const DeviceRank& rank, const std::string& text,
                const DeviceFloats& in, const DeviceFloats& out) {
  const DeviceFloats tokens = rank.floats({0.0F, 0.0F});
  void* buffers[] = {in.data(), tokens.data(), out.data(), tokens.data() + sizeof(float)};
  return tensorflow::run_on_gpu(port, text, rank.stream->get(), buffers).value_or("");
}

TEST_CASE("a function on a GPU: the result comes after XLA's stream, in it") {
  DeviceWorld world(2);
  std::vector<std::unique_ptr<BusyStream>> busy;
  std::vector<DeviceFloats> tensors;
  std::vector<DeviceFloats> results;
  for (int rank = 0; rank < 2; ++rank) {
    busy.push_back(std::make_unique<BusyStream>(world.rank(rank)));
    tensors.push_back(world.rank(rank).floats({3.0F}));
    results.push_back(world.rank(rank).floats({7.0F}));
  }
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    TestPort port(engine, mine);
    const auto place = static_cast<std::size_t>(rank);
    const std::string text = text_of(Kind::kAllreduce, 0, "0 ", 1, 0);
    CHECK(run(port, mine, text, tensors[place], results[place]) == "");
    CHECK(results[place].values() == std::vector{7.0F});  // this thread did not wait for the GPU
  });
  for (const auto& each : busy) each->release();
  for (int rank = 0; rank < 2; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    world.rank(rank).synchronize();
    CHECK(results[place].values() == std::vector{6.0F});
    CHECK(tensors[place].values() == std::vector{3.0F});
  }
}

TEST_CASE("a function on a GPU gets rows, received splits and the last rank to join") {
  for (const bool is_shared : {false, true}) {
    DeviceWorld world(3, {.has_own_gpus = !is_shared});
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      TestPort port(engine, mine);
      const float first = static_cast<float>(10 * rank);
      const DeviceFloats rows = mine.floats({first, first + 1, first + 2, first + 3});
      const DeviceFloats gathered = mine.floats(std::vector<float>(12, 7.0F));
      CHECK(run(port, mine, text_of(Kind::kAllgather, 3, "0 ", 4, 12), rows, gathered) == "");
      mine.synchronize();
      CHECK(gathered.values() == std::vector<float>{0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23});

      // Each sends rank 1 two rows.
      const std::int64_t count = rank == 1 ? 6 : 3;
      const DeviceFloats received =
          mine.floats(std::vector<float>(static_cast<std::size_t>(count)));
      const DeviceFloats splits = mine.floats({0.0F, 0.0F, 0.0F, 0.0F});
      void* buffers[] = {rows.data(), splits.data(), received.data(), splits.data(),
                         splits.data() + 3 * sizeof(float)};
      const std::string text = text_of(Kind::kAlltoall, 3, "3 1 2 1 ", 4, count);
      CHECK(tensorflow::run_on_gpu(port, text, mine.stream->get(), buffers) == std::nullopt);
      mine.synchronize();
      const std::int32_t each = rank == 1 ? 2 : 1;
      CHECK(numbers_in(splits) == std::vector<std::int32_t>{each, each, each, 0});
      if (rank == 1) CHECK(received.values() == std::vector<float>{1, 2, 11, 12, 21, 22});

      const DeviceFloats last = mine.floats({7.0F});
      CHECK(tensorflow::run_on_gpu(
                port, text_of(Kind::kJoin, 0, "0 ", 0, 0), mine.stream->get(),
                std::vector<void*>{splits.data(), last.data(), splits.data()}.data()) ==
            std::nullopt);
      mine.synchronize();
      CHECK(numbers_in(last).front() >= 0);
      CHECK(numbers_in(last).front() < 3);
    });
  }
}

TEST_CASE("numbers about the world, and errors as XLA's") {
  DeviceWorld world(1);
  DeviceRank& mine = world.rank(0);
  TestPort port(world.engines().engine(0), mine);
  const DeviceFloats tensor = mine.floats({3.0F});
  const cuda::Stream stream = mine.stream->get();
  CHECK(tensorflow::put_world_number(port, "0 0 ", stream, tensor.data()) == std::nullopt);
  mine.synchronize();
  CHECK(numbers_in(tensor) == std::vector<std::int32_t>{1});
  CHECK(tensorflow::put_world_number(port, "0 5 ", stream, tensor.data())
            .value_or("")
            .starts_with("ValueError: Horovod has not been initialized, or process set 5"));

  const DeviceFloats out = mine.floats({0.0F, 0.0F});
  const std::string misfit = run(port, mine, text_of(Kind::kAllgather, 1, "0 ", 1, 2), tensor, out);
  CHECK(misfit.find("allgather 'x': the result has shape [1], the compiled program expects "
                    "[2]") != std::string::npos);
  CHECK(run(port, mine, "77 ", tensor, out).find("a compiled call has kind 77") !=
        std::string::npos);
  stand_in_fail("ncclAllReduce", 3, 0);
  const std::string text =
      run(port, mine, text_of(Kind::kAllreduce, 0, "0 ", 1, 0), tensor, tensor);
  CHECK(text.starts_with("HorovodInternalError: "));
  CHECK(text.find("ncclAllReduce: unhandled system error") != std::string::npos);
}

}  // namespace
}  // namespace hvd::test
