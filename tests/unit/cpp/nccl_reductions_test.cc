#include "backend/nccl_reductions.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "device_world.h"
#include "kernels/reduce.h"

namespace hvd::test {
namespace {

// Calls whose tensors lie behind each other at made-up addresses.
class Calls {
 public:
  void add(Dtype dtype, std::int64_t count, ReduceOp op = ReduceOp::kSum, double prescale = 1.0) {
    Request& request = requests_.emplace_back();
    request.dtype = dtype;
    request.op = op;
    request.prescale = prescale;
    request.dims_count = 1;
    request.dims[0] = count;
  }
  ReductionPlan plan(int size = 2) {
    works_.clear();
    calls_.clear();
    for (const Request& request : requests_) works_.emplace_back().request = &request;
    for (std::size_t i = 0; i < works_.size(); ++i) {
      calls_.push_back({.work = &works_[i], .in = in(i), .out = out(i)});
    }
    return plan_allreduces(calls_, size, buffer());
  }
  std::size_t bytes() const { return packed_bytes(calls_); }
  static std::byte* in(std::size_t number) { return pointer((number + 1) << 32U); }
  static std::byte* out(std::size_t number) { return pointer((number + 100) << 32U); }
  static std::byte* buffer() { return pointer(1UL << 50U); }

 private:
  static std::byte* pointer(std::size_t address) { return reinterpret_cast<std::byte*>(address); }

  std::deque<Request> requests_;
  std::vector<Work> works_;
  std::vector<NcclCall> calls_;
};

TEST_CASE("a tensor alone, and a large one, are reduced where they are") {
  Calls calls;
  calls.add(Dtype::kFloat32, 3, ReduceOp::kAverage);
  calls.add(Dtype::kFloat32, 4 << 20);
  const ReductionPlan plan = calls.plan(4);
  CHECK(calls.bytes() == 0);
  CHECK(plan.before.list().empty());
  REQUIRE(plan.calls.size() == 2);
  CHECK(plan.calls[0].in == Calls::in(0));
  CHECK(plan.calls[0].out == Calls::out(0));
  CHECK(plan.calls[0].op == nccl::RedOp::kSum);
  REQUIRE(plan.after.list().size() == 1);
  CHECK(plan.after.list()[0].factor == 0.25);
  CHECK(plan.after.list()[0].pieces.size() == 1);
}

TEST_CASE("small tensors of one dtype and op are one call, whatever their factors are") {
  Calls calls;
  calls.add(Dtype::kFloat32, 3);
  calls.add(Dtype::kFloat16, 5);
  calls.add(Dtype::kFloat32, 0);
  calls.add(Dtype::kFloat32, 7, ReduceOp::kAverage, 0.5);
  calls.add(Dtype::kFloat32, 9, ReduceOp::kMax);
  calls.add(Dtype::kFloat16, 11);
  const ReductionPlan plan = calls.plan();
  CHECK(calls.bytes() >= 10 * 4 + 16 * 2);
  REQUIRE(plan.calls.size() == 3);
  CHECK(plan.calls[0].in == Calls::buffer());
  CHECK(plan.calls[0].count == 10);
  CHECK(plan.calls[1].count == 16);
  CHECK(plan.calls[1].dtype == Dtype::kFloat16);
  CHECK(plan.calls[2].in == Calls::in(4));
  CHECK(plan.before.list().size() == 3);  // float32, float16, float32 times 0.5
  CHECK(plan.after.list().size() == 3);
  const MovedPiece& second = plan.before.list()[1].pieces.at(0);
  CHECK(second.from == cuda::address_of(Calls::in(3)));
  CHECK(second.to == cuda::address_of(Calls::buffer() + 12));
}

TEST_CASE("a factor that comes first leaves the tensor as it is") {
  Calls calls;
  calls.add(Dtype::kFloat64, 3, ReduceOp::kSum, 0.5);
  const ReductionPlan plan = calls.plan();
  REQUIRE(plan.before.list().size() == 1);
  CHECK(plan.before.list()[0].pieces.at(0).to == cuda::address_of(Calls::out(0)));
  CHECK(plan.calls.at(0).in == Calls::out(0));
  CHECK(plan.after.list().empty());
}

// A piece of device memory with random bits, and what it becomes.
struct Moved {
  DeviceBlockPtr from;
  DeviceBlockPtr to;
  std::size_t count;
};

std::byte* on_host(const DeviceBlockPtr& block) {
  return static_cast<std::byte*>(stand_in_host_address(block->address()));
}

Moved make_piece(Gpu& gpu, Dtype dtype, std::size_t count, std::mt19937& random) {
  Moved moved{.from = gpu.memory().allocate(0, count * size_of(dtype)),
              .to = gpu.memory().allocate(0, count * size_of(dtype)),
              .count = count};
  std::byte* const bytes = on_host(moved.from);
  for (std::size_t i = 0; i < count * size_of(dtype); ++i) bytes[i] = std::byte(random() & 0x3fU);
  return moved;
}

void check_move(Gpu& gpu, Dtype dtype, double factor, std::span<const std::size_t> counts) {
  std::mt19937 random(1);
  std::vector<Moved> moved;
  std::vector<MovedPiece> pieces;
  for (const std::size_t count : counts) {
    moved.push_back(make_piece(gpu, dtype, count, random));
    pieces.push_back(
        {.to = moved.back().to->address(), .from = moved.back().from->address(), .count = count});
  }
  const CudaStream stream(gpu.driver(), 0);
  const CurrentDevice current(gpu.driver(), 0);
  gpu.move_kernels(0).launch(dtype, factor, pieces, stream.get());
  stand_in_synchronize(stream.get(), 0);
  for (const Moved& each : moved) {
    std::vector<std::byte> expected(each.count * size_of(dtype));
    const std::vector<const std::byte*> sources{on_host(each.from)};
    reduce({.dtype = dtype, .op = ReduceOp::kSum, .prescale = factor}, sources, expected.data(),
           nullptr, each.count);
    const std::span found(on_host(each.to), expected.size());
    CHECK_MESSAGE(std::ranges::equal(found, expected), name_of(dtype), " ", each.count);
  }
}

TEST_CASE("pieces of every dtype arrive with the host's bits") {
  stand_in_reset();
  Gpu gpu(CUDA_STAND_IN, {});
  const std::vector<std::size_t> few{1, 3, 256, 4097, 140'000};
  const std::vector<std::size_t> many(kMostPieces + 3, 5);
  for (int number = 0; number < kDtypeCount; ++number) {
    const auto dtype = static_cast<Dtype>(number);
    check_move(gpu, dtype, is_float(dtype) ? 1.0 / 3.0 : 1.0, few);
    check_move(gpu, dtype, 1.0, many);
  }
}

// Averages and other reductions with different factors, on ranks with NCCL.
TEST_CASE("a bucket of all sizes is reduced in one call") {
  constexpr std::size_t kLarge = 300'000;
  DeviceWorld world(2);
  world.run([](int rank, Engine& engine, DeviceRank& mine) {
    const auto value = static_cast<float>(rank + 1);
    std::vector<DeviceFloats> tensors;
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, kLarge, std::size_t{7}}) {
      tensors.push_back(mine.floats(std::vector(count, value)));
    }
    Operation all = on_device_in_place("x", tensors[0]);
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      all.requests.push_back(all.requests.front());
      all.requests[i].dims = {static_cast<std::int64_t>(tensors[i].count())};
      all.tensors.push_back(
          {.in = tensors[i].data(), .out = tensors[i].data(), .device = mine.device});
    }
    for (Request& request : all.requests) {
      request.is_grouped = true;
      request.op = ReduceOp::kAverage;
    }
    all.requests[3].op = ReduceOp::kSum;
    all.requests[3].prescale = 0.5;
    all.requests[3].postscale = 10.0;
    finish_on_device(engine, submit(engine, mine, all));
    mine.synchronize();
    CHECK(tensors[0].values() == std::vector{1.5F});
    CHECK(tensors[1].values() == std::vector(1000, 1.5F));
    CHECK(tensors[2].values() == std::vector(kLarge, 1.5F));
    CHECK(tensors[3].values() == std::vector(7, 15.0F));
  });
  CHECK(stand_in_calls("ncclAllReduce") == 2);
  CHECK(stand_in_calls("cuLaunchKernel") == 8);  // two factors, before and after
}

TEST_CASE("a reducescatter with factors leaves its tensor as it is") {
  DeviceWorld world(2);
  world.run([](int rank, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats(std::vector(4, static_cast<float>(rank + 1)));
    Operation operation = on_device("x", Kind::kReducescatter, tensor, nullptr, {4});
    operation.requests[0].op = ReduceOp::kAverage;
    operation.requests[0].prescale = 4.0;
    const auto outputs = finish_on_device(engine, submit(engine, mine, operation));
    mine.synchronize();
    CHECK(floats_of(outputs.at(0)) == std::vector(2, 6.0F));
    CHECK(tensor.values() == std::vector(4, static_cast<float>(rank + 1)));
  });
}

}  // namespace
}  // namespace hvd::test
