// Ranks of a host that share GPU memory: the plan, the kernels' text against the host's kernels,
// and what happens where it does not work.
#include <doctest/doctest.h>

#include <bit>
#include <random>

#include "backend/device_ipc_plan.h"
#include "device_world.h"
#include "gpu/gpu_kernels.h"
#include "kernels/reduce.h"

namespace hvd::test {
namespace {

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

Request floats(Kind kind, std::vector<std::int64_t> shape) {
  Request request;
  request.kind = kind;
  request.dims_count = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), request.dims.begin());
  return request;
}

Work work_of(const Request& request) {
  return {.request = &request, .in = at(4096), .out = at(8192), .rows = {}, .splits = {}};
}

TEST_CASE("what ranks give lies one after the other, and all know where") {
  const Request first = floats(Kind::kAllgather, {2, 5});
  const Request second = floats(Kind::kAllgather, {1, 1});
  std::vector<Work> works{work_of(first), work_of(second)};
  works[0].rows = {2, 4};
  works[1].rows = {1, 0};
  const IpcPlan plan = plan_ipc(works, {.rank = 0, .size = 2});
  REQUIRE(plan.gifts.size() == 2);
  CHECK(plan.gifts[0].size_bytes == 40);
  CHECK(plan.gifts[1].at == 64);
  REQUIRE(plan.takings.size() == 3);  // nothing of rank 1's second
  CHECK(plan.takings[1].giver == 1);
  CHECK(plan.takings[1].at == 0);
  CHECK(plan.takings[1].size_bytes == 80);
  CHECK(plan.takings[1].to == at(8192 + 40));
  CHECK(plan.takings[2].at == 64);
  CHECK(plan.longest_bytes == 128);
}

TEST_CASE("an alltoall takes its part of each stream") {
  const Request request = floats(Kind::kAlltoall, {3});
  std::vector<Work> works{work_of(request)};
  works[0].splits = {1, 2, 0, 3};
  const IpcPlan plan = plan_ipc(works, {.rank = 1, .size = 2});
  REQUIRE(plan.takings.size() == 2);
  CHECK(plan.takings[0].at == 4);
  CHECK(plan.takings[0].size_bytes == 8);
  CHECK(plan.takings[1].giver == 1);
  CHECK(plan.takings[1].to == at(8192 + 8));
}

TEST_CASE("a broadcast is the root's alone, a reducescatter is cut by rows") {
  const Request broadcast = floats(Kind::kBroadcast, {4});
  std::vector<Work> works{work_of(broadcast)};
  works[0].root = 1;
  CHECK(plan_ipc(works, {.rank = 0, .size = 2}).gifts.empty());
  CHECK(plan_ipc(works, {.rank = 0, .size = 2}).takings.size() == 1);
  works[0].in = works[0].out;
  CHECK(plan_ipc(works, {.rank = 1, .size = 2}).takings.empty());
  const Request scattered = floats(Kind::kReducescatter, {3, 2});
  works = {work_of(scattered)};
  const IpcPlan plan = plan_ipc(works, {.rank = 1, .size = 2});
  CHECK(plan.takings[0].giver == IpcTaking::kAll);
  CHECK(plan.takings[0].at == 16);
  CHECK(plan.takings[0].size_bytes == 8);
  works[0].out = nullptr;
  CHECK(plan_ipc(works, {.rank = 1, .size = 2}).takings.empty());
}

TEST_CASE("kernels get what they do as the host does it") {
  Request request = floats(Kind::kAllreduce, {1});
  request.op = ReduceOp::kAverage;
  request.prescale = 0.5;
  CHECK(ipc_runs(request));
  request.op = ReduceOp::kAdasum;
  CHECK(!ipc_runs(request));
  request.dtype = Dtype::kInt16;
  request.op = ReduceOp::kSum;
  CHECK(!ipc_runs(request));
  request.prescale = 1.0;
  CHECK(ipc_runs(request));
  request.op = ReduceOp::kAverage;
  CHECK(!ipc_runs(request));
  request.kind = Kind::kAllgather;
  CHECK(ipc_runs(request));
}

bool is_nan(Dtype dtype, const std::byte* element) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, element, size_of(dtype));
  if (dtype == Dtype::kFloat16) return (bits & 0x7fff) > 0x7c00;
  if (dtype == Dtype::kBfloat16) return (bits & 0x7fff) > 0x7f80;
  if (dtype == Dtype::kFloat32) return (bits & 0x7fffffff) > 0x7f800000;
  if (dtype == Dtype::kFloat64) return (bits << 1U) > (std::uint64_t{0x7ff} << 53U);
  return false;
}

// Any bits are numbers: infinities, NaNs and the smallest ones, too.
void check_kernel(Gpu& gpu, ReductionKernels& kernels, const KernelCall& call, int size) {
  constexpr std::size_t kCount = 1500;
  const CudaStream stream(gpu.driver(), 0);
  const CurrentDevice current(gpu.driver(), 0);
  std::mt19937 random(static_cast<unsigned>(size));
  std::vector<DeviceBlockPtr> blocks;
  std::vector<cuda::Address> addresses;
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank <= size; ++rank) {
    blocks.push_back(gpu.memory().allocate(0, kCount * 8));
    auto* bytes = static_cast<std::uint8_t*>(stand_in_host_address(blocks.back()->address()));
    for (std::size_t i = 0; i < kCount * 8; ++i) bytes[i] = static_cast<std::uint8_t>(random());
    if (rank == size) break;
    addresses.push_back(blocks.back()->address());
    sources.push_back(reinterpret_cast<const std::byte*>(bytes));
  }
  kernels.launch(call, addresses, blocks.back()->address(), kCount, stream.get());
  stand_in_synchronize(stream.get(), 0);
  const auto* found =
      static_cast<const std::byte*>(stand_in_host_address(blocks.back()->address()));
  std::vector<std::byte> expected(kCount * 8);
  reduce(
      {.dtype = call.dtype, .op = call.op, .prescale = call.prescale, .postscale = call.postscale},
      sources, expected.data(), nullptr, kCount);
  int different = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t offset = i * size_of(call.dtype);
    if (is_nan(call.dtype, found + offset) && is_nan(call.dtype, &expected[offset])) continue;
    different += std::memcmp(found + offset, &expected[offset], size_of(call.dtype)) != 0;
  }
  CHECK_MESSAGE(different == 0, reduction_kernel_name(call.dtype, call.op), " of ", size);
}

TEST_CASE("the kernels for GPUs compute the host's bits") {
  stand_in_reset();
  Gpu gpu(CUDA_STAND_IN, {});
  ReductionKernels kernels(gpu.driver(), 0);
  for (int number = 0; number < kDtypeCount; ++number) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      KernelCall call{.dtype = static_cast<Dtype>(number), .op = op};
      check_kernel(gpu, kernels, call, 2);
      Request request = floats(Kind::kAllreduce, {1});
      request.dtype = call.dtype;
      request.prescale = 0.3;
      if (!ipc_runs(request)) continue;
      call.prescale = 0.3;
      call.postscale = 1.0 / 3.0;
      check_kernel(gpu, kernels, call, 3);
    }
  }
}

void check_allreduce(DeviceWorld& world, const std::string& name = "x") {
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats(std::vector(20'000, 1.0F));
    finish_on_device(engine, submit(engine, mine, on_device_in_place(name, tensor)));
    mine.synchronize();
    CHECK(tensor.values() == std::vector(20'000, static_cast<float>(world.engines().size())));
  });
}

constexpr bool kOnOneGpu = false;

TEST_CASE("ranks on one GPU exchange over IPC, and close what they have opened") {
  {
    DeviceWorld world(3, {.has_own_gpus = kOnOneGpu});
    check_allreduce(world);
    CHECK(stand_in_calls("cuIpcOpenMemHandle") == 6);
    CHECK(stand_in_calls("cuMemHostAlloc") == 3);  // for the trial
    CHECK(stand_in_calls("cuIpcCloseMemHandle") == 0);
    world.run([](int, Engine& engine, DeviceRank&) { engine.shutdown(); });
    CHECK(stand_in_calls("cuIpcCloseMemHandle") == 6);
  }
}

// Each bucket begins where the one before has left the memory, which ranks leave at different
// times.
TEST_CASE("buckets of many lengths follow each other through the same memory") {
  constexpr int kRounds = 40;
  DeviceWorld world(3, {.has_own_gpus = kOnOneGpu, .ipc_pass_bytes = 4096});
  world.run([](int rank, Engine& engine, DeviceRank& mine) {
    for (int round = 0; round < kRounds; ++round) {
      const std::string name = std::to_string(round);
      const auto count = static_cast<std::size_t>(round * 700 % 5000 + 1);
      const float value = static_cast<float>(round + rank);
      const DeviceFloats sum = mine.floats(std::vector(count, value));
      const DeviceFloats given = mine.floats(std::vector(count, value));
      Operation broadcast = on_device_in_place("b" + name, given, Kind::kBroadcast);
      broadcast.requests[0].root = round % 3;
      const HandleId first = submit(engine, mine, on_device_in_place("a" + name, sum));
      const HandleId second = submit(engine, mine, broadcast);
      finish_on_device(engine, second);
      finish_on_device(engine, first);
      mine.synchronize();
      CHECK(sum.values() == std::vector(count, static_cast<float>(3 * round + 3)));
      CHECK(given.values() == std::vector(count, static_cast<float>(round + round % 3)));
    }
  });
  CHECK(stand_in_calls("cuMemHostAlloc") == 3);
}

TEST_CASE("ranks with a GPU each but no NCCL exchange over IPC, too") {
  DeviceWorld world(2, {.nccl = {}});
  check_allreduce(world);
  CHECK(stand_in_calls("cuIpcOpenMemHandle") == 2);
  CHECK(stand_in_calls("cuMemHostAlloc") == 2);
}

TEST_CASE("the host carries tensors where that is wanted, though ranks could share memory") {
  DeviceWorld world(2, {.has_own_gpus = kOnOneGpu, .route = DeviceRoute::kHost});
  check_allreduce(world);
  CHECK(stand_in_calls("cuIpcGetMemHandle") == 0);
}

TEST_CASE("where IPC cannot be on one rank, the host carries tensors of all") {
  for (const char* function : {"cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuModuleLoadData",
                               "cuModuleGetFunction", "cuLaunchKernel"}) {
    DeviceWorld world(2, {.has_own_gpus = kOnOneGpu});
    stand_in_fail(function, 801, 1);  // on the rank that comes second
    check_allreduce(world);
    check_allreduce(world, "y");
    CHECK_MESSAGE(stand_in_calls("cuMemHostAlloc") > 2, function);
  }
}

TEST_CASE("a GPU that computes something else is not trusted") {
  DeviceWorld world(2, {.has_own_gpus = kOnOneGpu});
  stand_in_spoil_kernels();
  check_allreduce(world);
  CHECK(stand_in_calls("cuMemHostAlloc") > 2);
  CHECK(stand_in_calls("cuIpcOpenMemHandle") == stand_in_calls("cuIpcCloseMemHandle"));
}

TEST_CASE("an error in a pass ends the world with CUDA's text, and another one works") {
  DeviceWorld world(2, {.has_own_gpus = kOnOneGpu});
  check_allreduce(world);
  stand_in_fail("cuLaunchKernel", 2, 0);
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats({1.0F});
    const std::string text = error_of(
        [&] { finish_on_device(engine, submit(engine, mine, on_device_in_place("y", tensor))); });
    const std::string own = "rank " + std::to_string(engine.world().config.rank) +
                            ": cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY, out of memory";
    CHECK_MESSAGE(
        (text.find(own) != std::string::npos || text.find("has given up") != std::string::npos),
        text);
  });
  DeviceWorld next(2, {.has_own_gpus = kOnOneGpu});
  check_allreduce(next);
  CHECK(stand_in_calls("cuIpcOpenMemHandle") == 2);
}

TEST_CASE("a rank that dies ends what the others exchange with it") {
  int end[2];  // what rank 0 watches of rank 1
  REQUIRE(pipe(end) == 0);
  DeviceWorld world(2, {.has_own_gpus = kOnOneGpu, .watched = [&](int rank) {
                          std::vector<WatchedProcess> processes;
                          if (rank == 0)
                            processes.push_back({.rank = 1, .pidfd = end[0], .pid = 0});
                          return processes;
                        }});
  check_allreduce(world);
  const DeviceFloats first = world.rank(0).floats({1.0F});
  const DeviceFloats second = world.rank(1).floats({1.0F});
  BusyStream busy(world.rank(1));  // so it never fills its part
  Engine& engine = world.engines().engine(0);
  const HandleId handle = submit(engine, world.rank(0), on_device_in_place("y", first));
  const HandleId other =
      submit(world.engines().engine(1), world.rank(1), on_device_in_place("y", second));
  close(end[1]);
  CHECK(error_of([&] { finish_on_device(engine, handle); }).find("rank 1 died") !=
        std::string::npos);
  busy.release();
  CHECK(error_of([&] { finish_on_device(world.engines().engine(1), other); }) != "");
}

TEST_CASE("worlds of a process use its shared memory one after the other") {
  const auto access = std::make_shared<GpuAccess>(CUDA_STAND_IN, std::vector<std::string>{});
  const std::shared_ptr<Gpu> gpu = access->open();
  const cuda::Address first = gpu->ipc_memories().take(0, 1 << 20)->address();
  CHECK(gpu->ipc_memories().take(0, 1 << 20)->address() == first);
  CHECK(gpu->ipc_memories().take(1, 1 << 20)->address() != first);
}

}  // namespace
}  // namespace hvd::test
