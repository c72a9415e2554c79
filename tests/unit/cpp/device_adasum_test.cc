// Adasum on GPUs over NCCL: the tree, the kernels' text against the CPU's, whole worlds.
#include <doctest/doctest.h>

#include <random>

#include "backend/adasum_negotiation.h"
#include "caught_errors.h"
#include "collective/adasum_weights.h"
#include "contains.h"
#include "device_world.h"
#include "gpu/gpu_kernels.h"
#include "kernels/adasum.h"

namespace hvd::test {
namespace {

TEST_CASE("ranks beyond a power of two fold into the first ones, then neighbours combine") {
  const AdasumTree tree = adasum_tree(6);
  CHECK(tree.order == std::vector<std::size_t>{0, 4, 1, 5, 2, 3});
  std::vector<std::array<std::uint32_t, 3>> joins;
  for (const AdasumTree::Join& join : tree.joins) {
    joins.push_back({join.begin, join.middle, join.end});
  }
  const std::vector<std::array<std::uint32_t, 3>> expected{
      {0, 1, 2}, {2, 3, 4}, {0, 2, 4}, {4, 5, 6}, {0, 4, 6}};
  CHECK(joins == expected);
  CHECK(adasum_tree(1).joins.empty());
}

TEST_CASE("the kernels of Adasum compute what the CPU does, for any number of vectors") {
  stand_in_reset();
  Gpu gpu(CUDA_STAND_IN, {});
  for (const std::size_t vectors : {1, 2, 3, 6, 8}) {
    AdasumKernels kernels(gpu.driver(), 0, vectors);
    AdasumTrial trial(gpu, 0, kernels, vectors);
    while (!trial.is_done()) std::this_thread::yield();
    CHECK_MESSAGE(trial.is_right(), vectors, " vectors");
  }
}

// On the GPU, from dot products that are there.
std::vector<double> weights_of(Gpu& gpu, const std::vector<double>& grams, std::size_t vectors,
                               std::size_t tensors) {
  AdasumKernels kernels(gpu.driver(), 0, vectors);
  const CudaStream stream(gpu.driver(), 0);
  const CurrentDevice current(gpu.driver(), 0);
  const DeviceBlockPtr block = gpu.memory().allocate(0, (grams.size() + vectors * tensors) * 8);
  auto* memory = static_cast<double*>(stand_in_host_address(block->address()));
  std::ranges::copy(grams, memory);
  kernels.find_weights(block->address(), tensors, block->address() + grams.size() * 8,
                       stream.get());
  stand_in_synchronize(stream.get(), 0);
  return {memory + grams.size(), memory + grams.size() + vectors * tensors};
}

// Some of the vectors are zero, equal, or much smaller than others.
TEST_CASE("weights have the CPU's bits, for each of several tensors") {
  stand_in_reset();
  Gpu gpu(CUDA_STAND_IN, {});
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  constexpr std::size_t kTensors = 20;
  for (const std::size_t vectors : {2, 3, 7, 12}) {
    std::vector<double> grams;
    std::vector<double> expected;
    for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
      std::vector<std::vector<float>> values(vectors, std::vector<float>(5));
      for (auto& vector : values) {
        const float scale = std::array{1.0F, 0.0F, 1e-9F, 1e9F}[random() % 4];
        for (float& value : vector) value = scale * normal(random);
        if (random() % 4 == 0) vector = values.front();
      }
      std::vector<const std::byte*> sources;
      for (const auto& vector : values) {
        sources.push_back(reinterpret_cast<const std::byte*>(vector.data()));
      }
      std::vector<double> gram(gram_entries(vectors), 0.0);
      accumulate_gram(Dtype::kFloat32, sources, 5, gram.data());
      std::vector<double> weights(vectors);
      adasum_weights(gram, weights);
      grams.insert(grams.end(), gram.begin(), gram.end());
      expected.insert(expected.end(), weights.begin(), weights.end());
    }
    CHECK(weights_of(gpu, grams, vectors, kTensors) == expected);
  }
}

// Of `rank`, neither alike nor at right angles.
std::vector<float> gradients(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 11) % 101) / 17 - 2;
  }
  return values;
}

Operation adasum(Operation operation) {
  operation.requests[0].op = ReduceOp::kAdasum;
  operation.requests[0].prescale = 0.5;
  return operation;
}

std::vector<float> of_host(Engine& engine, int rank, std::size_t count) {
  std::vector<float> values = gradients(rank, count);
  finish(engine, submit(engine, adasum(in_place("host", values))));
  return values;
}

// In place, and not.
std::array<std::vector<float>, 2> of_gpu(int rank, Engine& engine, DeviceRank& mine,
                                         std::size_t count) {
  const DeviceFloats tensor = mine.floats(gradients(rank, count));
  const DeviceFloats in = mine.floats(gradients(rank, count));
  const DeviceFloats out = mine.floats(std::vector(count, 0.0F));
  const HandleId first =
      submit(engine, mine, adasum(on_device_in_place("a", tensor)), Intent::kCompute);
  const HandleId second = submit(
      engine, mine,
      adasum(on_device("b", Kind::kAllreduce, in, out.data(), {static_cast<std::int64_t>(count)})));
  finish_on_device(engine, first);
  finish_on_device(engine, second);
  mine.synchronize();
  CHECK(in.values() == gradients(rank, count));
  return {tensor.values(), out.values()};
}

// Dot products are sums of terms in another order.
void check_alike(const std::vector<float>& values, const std::vector<float>& expected) {
  REQUIRE(values.size() == expected.size());
  std::size_t far = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    far += std::abs(values[i] - expected[i]) > 1e-6F * (1 + std::abs(expected[i])) ? 1 : 0;
  }
  CHECK(far == 0);
}

TEST_CASE("Adasum over NCCL gives what it gives of the host's, and all ranks the same bits") {
  for (const int size : {1, 2, 3, 5}) {
    DeviceWorld world(size);
    const auto ranks = static_cast<std::size_t>(size);
    for (const std::size_t count : {0, 1, 1000, 50'000}) {
      std::vector<std::vector<float>> results(ranks);
      world.run([&](int rank, Engine& engine, DeviceRank& mine) {
        const std::vector<float> expected = of_host(engine, rank, count);
        const auto [in_place, out_of_place] = of_gpu(rank, engine, mine, count);
        check_alike(in_place, expected);
        CHECK(in_place == out_of_place);
        results[static_cast<std::size_t>(rank)] = in_place;
      });
      for (const auto& result : results) CHECK(result == results.front());
    }
    CHECK(stand_in_calls("ncclSend") > 0);
    // Of the trial alone: what is asked for does not leave the GPUs.
    CHECK(stand_in_calls("cuMemcpyAsync to the host") == size);
  }
}

TEST_CASE("Adasum through the host gives bit for bit what it gives of the host's") {
  for (const int size : {2, 3}) {
    DeviceWorld world(size, {.route = DeviceRoute::kHost});
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      for (const std::size_t count : {1, 1000, 1'200'000}) {
        const std::vector<float> expected = of_host(engine, rank, count);
        const auto [in_place, out_of_place] = of_gpu(rank, engine, mine, count);
        CHECK(in_place == expected);
        CHECK(out_of_place == expected);
      }
    });
    CHECK(stand_in_calls("ncclSend") == 0);
  }
}

TEST_CASE("a GPU that combines otherwise leaves Adasum to the CPU, which is said once") {
  const CaughtErrors errors;
  DeviceWorld world(2, {.log_level = LogLevel::kWarning});
  stand_in_spoil_kernels();
  for (const std::size_t count : {1000, 1001}) {
    world.run([&](int rank, Engine& engine, DeviceRank& mine) {
      const std::vector<float> expected = of_host(engine, rank, count);
      CHECK(of_gpu(rank, engine, mine, count)[0] == expected);
    });
  }
  CHECK(errors.count("the CPU combines them; rank 0: this GPU does not combine as the CPU") == 1);
  CHECK(stand_in_calls("ncclSend") == 0);
}

TEST_CASE("kernels that one GPU's driver does not translate leave Adasum to all CPUs") {
  DeviceWorld world(3);
  stand_in_fail("cuModuleLoadData", 218, 2);
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    const std::vector<float> expected = of_host(engine, rank, 1000);
    CHECK(of_gpu(rank, engine, mine, 1000)[0] == expected);
  });
  CHECK(stand_in_calls("ncclSend") == 0);
}

TEST_CASE("in Adasum over NCCL a rank that has joined takes part with zeros") {
  DeviceWorld world(3);
  world.run([](int rank, Engine& engine, DeviceRank& mine) {
    if (rank != 2) {
      const DeviceFloats tensor =
          mine.floats(rank == 0 ? std::vector{3.0F, 0.0F, 0.0F} : std::vector{0.0F, 0.0F, 5.0F});
      finish_on_device(engine, submit(engine, mine, adasum(on_device_in_place("x", tensor))));
      mine.synchronize();
      CHECK(tensor.values() == std::vector{1.5F, 0.0F, 2.5F});
    }
    join(engine);
  });
}

TEST_CASE("an error in a step of Adasum ends the world, with NCCL's text, and another one works") {
  for (const long calls : {0, 4, 12}) {
    DeviceWorld world(2);
    stand_in_fail("ncclSend", 3, calls);
    world.run([&](int rank, Engine& engine, DeviceRank& mine) {
      const std::string text = error_of([&] {
        for (int turn = 0; turn < 4; ++turn) of_gpu(rank, engine, mine, 1000);
      });
      const bool is_told =
          contains(text, "ncclSend: unhandled system error") || contains(text, "has given up");
      CHECK_MESSAGE(is_told, text);
    });
  }
  DeviceWorld next(2);
  next.run([&](int rank, Engine& engine, DeviceRank& mine) {
    check_alike(of_gpu(rank, engine, mine, 1000)[0], of_host(engine, rank, 1000));
  });
}

}  // namespace
}  // namespace hvd::test
