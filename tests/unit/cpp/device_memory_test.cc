// Memory of GPUs that the engine allocates: no thread waits for a GPU to give it back, and a GPU
// that is full ends no world.
#include <doctest/doctest.h>

#include "caught_errors.h"
#include "contains.h"
#include "device_world.h"

namespace hvd::test {
namespace {

constexpr std::size_t kTooLargeToKeep = DeviceMemory::kMostSpare + 1;
constexpr std::size_t kNothingMore = 1;  // a limit that every GPU is beyond

// A GPU with or without memory pools.
struct OneGpu {
  explicit OneGpu(bool has_pools) {
    stand_in_reset();
    stand_in_set_gpus(8);
    stand_in_set_pools(has_pools ? 1 : 0);
    rank.gpu = std::make_shared<Gpu>(CUDA_STAND_IN, std::vector<std::string>{});
    rank.stream = std::make_unique<CudaStream>(rank.gpu->driver(), 0);
  }
  ~OneGpu() { stand_in_reset(); }
  OneGpu(const OneGpu&) = delete;
  OneGpu& operator=(const OneGpu&) = delete;

  DeviceBlockPtr allocate(std::size_t size_bytes) {
    return rank.gpu->memory().allocate(0, size_bytes);
  }
  // Allocates memory, and gives it back while the stream is still at work with it.
  const std::byte* use(std::size_t size_bytes) {
    const DeviceBlockPtr block = allocate(size_bytes);
    block->last_use = rank.stream->mark();
    return block->data;
  }

  DeviceRank rank{.gpu = nullptr, .device = 0, .stream = nullptr};
};

// Would never end if it waited for the stream.
TEST_CASE("who gives memory back does not wait for the GPU, nor does who allocates next") {
  for (const bool has_pools : {true, false}) {
    OneGpu one(has_pools);
    BusyStream work(one.rank);
    one.use(kTooLargeToKeep);
    const DeviceBlockPtr other = one.allocate(kTooLargeToKeep);
    CHECK(!other->is_on_host);
    one.use(1000);
    CHECK((stand_in_calls("cuMemAlloc") == 0) == has_pools);
    work.release();
  }
}

TEST_CASE("memory of an operation that failed is not freed before the GPU has done all its work") {
  for (const bool has_pools : {true, false}) {
    OneGpu one(has_pools);
    BusyStream work(one.rank);
    const std::byte* const address = one.allocate(1000)->data;  // its last use is not known
    CHECK(one.allocate(1000)->data != address);
    CHECK(stand_in_host_address(cuda::address_of(address)) != nullptr);
    work.release();
  }
}

TEST_CASE("the end of a program does not wait for the GPU either") {
  for (const bool has_pools : {true, false}) {
    auto one = std::make_unique<OneGpu>(has_pools);
    auto work = std::make_unique<BusyStream>(one->rank);
    one->use(1000);
    one.reset();
  }
}

TEST_CASE("memory is given out again when the GPU has done with it, not before") {
  OneGpu one(true);
  BusyStream work(one.rank);
  const std::byte* const address = one.use(1000);
  CHECK(one.use(1000) != address);
  work.release();
  one.rank.synchronize();
  const long allocations = stand_in_calls("cuMemAllocFromPoolAsync");
  const DeviceBlockPtr first = one.allocate(1000);
  const DeviceBlockPtr second = one.allocate(1000);
  CHECK((first->data == address || second->data == address));
  CHECK(stand_in_calls("cuMemAllocFromPoolAsync") == allocations);
}

TEST_CASE("a GPU without room gets back what is kept for later, then host memory takes its place") {
  OneGpu one(true);
  constexpr std::size_t kLimit = 1UL << 20;
  stand_in_limit_memory(kLimit);
  one.use(kLimit / 2);
  one.rank.synchronize();
  const DeviceBlockPtr large = one.allocate(kLimit / 4 * 3);
  CHECK(!large->is_on_host);
  DeviceMemory& memory = one.rank.gpu->memory();
  const DeviceBlockPtr larger = one.allocate(kLimit);
  CHECK(larger->is_on_host);
  CHECK(stand_in_host_address(larger->address()) == larger->data);
  const auto warning = memory.take_warning();
  REQUIRE(warning);
  CHECK(contains(*warning, "GPU 0 is full"));
  CHECK(!memory.take_warning());
}

TEST_CASE("host memory that took the place of a GPU's is given out again, and freed by no caller") {
  for (const bool has_pools : {true, false}) {
    OneGpu one(has_pools);
    stand_in_limit_memory(kNothingMore);
    BusyStream work(one.rank);
    one.use(kTooLargeToKeep);
    work.release();
    const std::byte* const address = one.use(1000);
    one.rank.synchronize();
    CHECK(one.allocate(1000)->data == address);
    stand_in_limit_memory(0);
    CHECK(!one.allocate(1000)->is_on_host);
  }
}

TEST_CASE("no room anywhere is an error that says how much there is, and how much is needed") {
  OneGpu one(true);
  stand_in_limit_memory(kNothingMore);
  stand_in_fail("cuMemHostAlloc", 2, 0);
  CHECK(error_of([&] { one.allocate(100'000); }) ==
        "GPU 0 has 1 bytes free of 1, but 131072 are needed; nor can they be pinned host memory: "
        "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY, out of memory");
  CHECK(contains(error_of([&] { one.rank.gpu->memory().allocate(77, 1); }), "there is no GPU 77"));
}

// Over NCCL, through the host, over CUDA IPC; with and without pools.
std::vector<DeviceOptions> memory_ways() {
  std::vector<DeviceOptions> ways;
  for (const bool has_pools : {true, false}) {
    ways.push_back({.has_pools = has_pools});
    ways.push_back({.route = DeviceRoute::kHost, .has_pools = has_pools});
    ways.push_back({.has_own_gpus = false, .has_pools = has_pools});
  }
  return ways;
}

constexpr std::size_t kColumns = 20'000;  // no memory that is kept is as large

// Rows of these numbers.
std::vector<float> rows_of(const std::vector<float>& numbers) {
  std::vector<float> rows;
  for (const float number : numbers) rows.insert(rows.end(), kColumns, number);
  return rows;
}

// A rank's program, which has its memory before the GPU is full.
struct Program {
  explicit Program(DeviceRank& rank)
      : mine(rank),
        given(rank.floats(rows_of({1, 2, 3, 4}))),
        taken(rank.floats(rows_of({0, 0, 0, 0, 0, 0, 0, 0}))) {}

  // As a binding does, it takes the result into memory of its own.
  std::vector<float> run(Engine& engine, Kind kind, bool is_on_host) {
    Operation operation =
        on_device("x", kind, given, nullptr, {4, static_cast<std::int64_t>(kColumns)});
    if (kind == Kind::kAlltoall) operation.splits = {2, 2};
    auto outputs = finish_on_device(engine, submit(engine, mine, operation));
    CHECK(outputs[0].block->is_on_host == is_on_host);
    const std::size_t size_bytes = outputs[0].size_bytes(Dtype::kFloat32);
    outputs[0].block->copy_to(cuda::address_of(taken.data()), size_bytes, mine.stream->get());
    outputs.clear();
    mine.synchronize();
    std::vector<float> values = taken.values();
    values.resize(size_bytes / sizeof(float));
    return values;
  }

  void check_all(Engine& engine, bool is_on_host) {
    const bool is_first = engine.world().config.rank == 0;
    CHECK(run(engine, Kind::kAllgather, is_on_host) == rows_of({1, 2, 3, 4, 1, 2, 3, 4}));
    CHECK(run(engine, Kind::kReducescatter, is_on_host) ==
          (is_first ? rows_of({2, 4}) : rows_of({6, 8})));
    CHECK(run(engine, Kind::kAlltoall, is_on_host) ==
          (is_first ? rows_of({1, 2, 1, 2}) : rows_of({3, 4, 3, 4})));
  }

  DeviceRank& mine;
  DeviceFloats given;
  DeviceFloats taken;
};

// A world of two ranks and their programs.
struct FullWorld {
  explicit FullWorld(const DeviceOptions& way) : world(2, way) {
    for (int rank = 0; rank < 2; ++rank) programs.emplace_back(world.rank(rank));
  }
  void run(const std::function<void(Engine&, Program&)>& body) {
    world.run([&](int rank, Engine& engine, DeviceRank&) {
      body(engine, programs[static_cast<std::size_t>(rank)]);
    });
  }
  // The first one, in which ranks may need memory of the GPU to find a way.
  void run_allreduce() {
    run([](Engine& engine, Program& program) {
      const Operation sum = on_device_in_place("first", program.taken);
      finish_on_device(engine, submit(engine, program.mine, sum));
      program.mine.synchronize();
    });
  }

  DeviceWorld world;
  std::vector<Program> programs;
};

TEST_CASE("on a full GPU collectives end with right results, each way, and the world goes on") {
  for (const DeviceOptions& way : memory_ways()) {
    FullWorld full(way);
    full.run_allreduce();
    for (const bool is_full : {true, true, false}) {
      stand_in_limit_memory(is_full ? kNothingMore : 0);
      full.run([&](Engine& engine, Program& program) { program.check_all(engine, is_full); });
    }
  }
}

TEST_CASE("ranks whose GPU is full at the first collective find a way") {
  for (const DeviceOptions& way : memory_ways()) {
    FullWorld full(way);
    stand_in_limit_memory(kNothingMore);
    full.run([&](Engine& engine, Program& program) { program.check_all(engine, true); });
  }
}

TEST_CASE("a rank that has joined gives zeros though its GPU is full, each way") {
  for (const DeviceOptions& way : memory_ways()) {
    FullWorld full(way);
    full.run_allreduce();
    stand_in_limit_memory(kNothingMore);
    full.run([](Engine& engine, Program& program) {
      if (engine.world().config.rank == 0) {
        const Operation sum = on_device_in_place("x", program.given);
        finish_on_device(engine, submit(engine, program.mine, sum));
        program.mine.synchronize();
        CHECK(program.given.values() == rows_of({1, 2, 3, 4}));
      }
      CHECK(join(engine) == 0);
    });
  }
}

TEST_CASE("each rank says once that its GPU is full") {
  const CaughtErrors errors;
  FullWorld full({.log_level = LogLevel::kWarning});
  stand_in_limit_memory(kNothingMore);
  for (int round = 0; round < 2; ++round) {
    full.run([&](Engine& engine, Program& program) { program.check_all(engine, true); });
  }
  for (const char* text : {"rank 0: GPU 0 is full: results", "rank 1: GPU 1 is full: results"}) {
    CHECK(errors.count(text) == 1);
  }
}

TEST_CASE("an operation without room anywhere fails with an error that names it and the rank") {
  FullWorld full({});
  full.run_allreduce();
  stand_in_limit_memory(kNothingMore);
  stand_in_fail("cuMemHostAlloc", 2, 0);
  full.run([](Engine& engine, Program& program) {
    const std::string text = error_of([&] { program.run(engine, Kind::kAllgather, true); });
    const std::string rank = std::to_string(engine.world().config.rank);
    const std::string own = "allgather 'x': rank " + rank + ": GPU " + rank + " has ";
    CHECK_MESSAGE((contains(text, own) || contains(text, "has given up")), text);
  });
}

}  // namespace
}  // namespace hvd::test
