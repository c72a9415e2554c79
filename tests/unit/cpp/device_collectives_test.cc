#include <doctest/doctest.h>

#include <cmath>

#include "device_world.h"

namespace hvd::test {
namespace {

// Over NCCL; through the host, because it is wanted; over CUDA IPC or, where there are several
// hosts, through the host, because ranks share a GPU.
const std::vector<DeviceOptions>& all_ways() {
  static const std::vector<DeviceOptions> ways{
      {}, {.streams = 2}, {.route = DeviceRoute::kHost}, {.has_own_gpus = false}};
  return ways;
}

bool is_over_nccl(const DeviceOptions& way) {
  return way.has_own_gpus && way.route != DeviceRoute::kHost;
}

bool is_over_ipc(const DeviceOptions& way, int size) {
  return !way.has_own_gpus && (ranks_per_host() == 0 || size <= ranks_per_host());
}

TEST_CASE("allreduce of GPU tensors, each way, in and out of place") {
  for (const DeviceOptions& way : all_ways()) {
    for (const int size : {1, 2, 3}) {
      if (size == 1 && !way.has_own_gpus) continue;  // shares with nobody
      DeviceWorld world(size, way);
      world.run([&](int rank, Engine& engine, DeviceRank& mine) {
        const std::size_t many = way.has_own_gpus ? 3'000'000 : 50'000;  // several passes
        for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, many}) {
          const float value = static_cast<float>(rank + 1);
          const DeviceFloats in_place = mine.floats(std::vector(count, value));
          const DeviceFloats in = mine.floats(std::vector(count, value));
          const DeviceFloats out = mine.floats(std::vector(count, 0.0F));
          Operation average =
              on_device("b", Kind::kAllreduce, in, out.data(), {static_cast<std::int64_t>(count)});
          average.requests[0].op = ReduceOp::kAverage;
          const HandleId first = submit(engine, mine, on_device_in_place("a", in_place));
          const HandleId second = submit(engine, mine, average);
          finish_on_device(engine, first);
          finish_on_device(engine, second);
          mine.synchronize();
          const float sum = static_cast<float>(size * (size + 1)) / 2;
          CHECK(in_place.values() == std::vector(count, sum));
          CHECK(out.values() == std::vector(count, sum / static_cast<float>(size)));
          CHECK(in.values() == std::vector(count, value));
        }
      });
      CHECK((stand_in_calls("ncclAllReduce") != 0) == is_over_nccl(way));
      // Over IPC one copy on each rank tells whether it works.
      const bool is_staged = !is_over_nccl(way) && !is_over_ipc(way, size);
      CHECK((stand_in_calls("cuMemcpyAsync to the host") > size) == is_staged);
      CHECK((stand_in_calls("cuIpcOpenMemHandle") != 0) == is_over_ipc(way, size));
    }
  }
}

TEST_CASE("nothing waits on the CPU: the collective starts when the program's stream comes to it") {
  DeviceWorld world(2);
  std::vector<std::unique_ptr<BusyStream>> busy;
  std::vector<DeviceFloats> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    busy.push_back(std::make_unique<BusyStream>(world.rank(rank)));
    tensors.push_back(world.rank(rank).floats({1.0F}));
  }
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    const auto index = static_cast<std::size_t>(rank);
    finish_on_device(engine, submit(engine, mine, on_device_in_place("x", tensors[index])));
    CHECK(tensors[index].values() == std::vector{1.0F});  // the handle is done, the GPU is not
  });
  for (const auto& each : busy) each->release();
  for (int rank = 0; rank < 2; ++rank) {
    world.rank(rank).synchronize();
    CHECK(tensors[static_cast<std::size_t>(rank)].values() == std::vector{2.0F});
  }
}

// As in a backward pass, where the thread that has submitted computes on.
TEST_CASE("an allreduce is launched when the last rank comes, though no thread waits") {
  for (const DeviceOptions& way : all_ways()) {
    DeviceWorld world(2, way);
    std::vector<DeviceFloats> tensors;
    for (int rank = 0; rank < 2; ++rank) tensors.push_back(world.rank(rank).floats({1.0F}));
    world.run([&](int rank, Engine& engine, DeviceRank& mine) {  // the first one takes longer
      const DeviceFloats& tensor = tensors[static_cast<std::size_t>(rank)];
      finish_on_device(engine, submit(engine, mine, on_device_in_place("x", tensor)));
    });
    for (int round = 0; round < 10; ++round) {
      std::array<HandleId, 2> handles{};
      for (const int rank : {round % 2, 1 - round % 2}) {
        const auto index = static_cast<std::size_t>(rank);
        handles[index] = submit(world.engines().engine(rank), world.rank(rank),
                                on_device_in_place("x", tensors[index]), Intent::kMore);
        // Not needed to pass: time for the background thread to fall asleep again.
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      const std::int64_t deadline_ns = now_ns() + Nanoseconds(kPatience).count();
      for (int rank = 0; rank < 2; ++rank) {
        Engine& engine = world.engines().engine(rank);
        while (engine.pending_count() != 0 && now_ns() < deadline_ns) std::this_thread::yield();
        REQUIRE(now_ns() < deadline_ns);
        finish_on_device(engine, handles[static_cast<std::size_t>(rank)]);
      }
    }
  }
}

TEST_CASE("the memory of a dropped result is given out again only after the collective") {
  DeviceWorld world(2);
  std::vector<std::unique_ptr<BusyStream>> busy;
  std::vector<DeviceFloats> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    busy.push_back(std::make_unique<BusyStream>(world.rank(rank)));
    tensors.push_back(world.rank(rank).floats({1.0F}));
  }
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    const DeviceFloats& tensor = tensors[static_cast<std::size_t>(rank)];
    const Operation gather = on_device("x", Kind::kAllgather, tensor, nullptr, {1});
    auto outputs = finish_on_device(engine, submit(engine, mine, gather));
    const std::byte* const address = outputs[0].data();
    outputs.clear();
    std::vector<DeviceFloats> others;
    for (int i = 0; i < 8; ++i) {
      others.push_back(mine.floats({0.0F}));
      CHECK(others.back().data() != address);
    }
  });
  for (const auto& each : busy) each->release();
  for (int rank = 0; rank < 2; ++rank) world.rank(rank).synchronize();
}

TEST_CASE("a confirmation waits for the GPU") {
  DeviceWorld world(1);
  const DeviceRank& mine = world.rank(0);
  const DeviceFloats tensor = mine.floats({3.0F});
  Engine& engine = world.engines().engine(0);
  CHECK(engine.confirm(kPatience));  // nothing is under way
  auto busy = std::make_unique<BusyStream>(mine);
  finish_on_device(engine, submit(engine, mine, on_device_in_place("x", tensor)));
  CHECK(!engine.confirm(std::chrono::milliseconds(1)));
  busy->release();
  CHECK(engine.confirm(kPatience));
  mine.synchronize();
  CHECK(tensor.values() == std::vector{3.0F});
}

TEST_CASE("tensors that are ready together are one group of calls") {
  DeviceWorld world(2);
  world.run([](int, Engine& engine, DeviceRank& mine) {
    std::vector<DeviceFloats> tensors;
    std::vector<Operation> operations;
    for (int i = 0; i < 20; ++i) tensors.push_back(mine.floats({static_cast<float>(i)}));
    for (int i = 0; i < 20; ++i) {
      operations.push_back(
          on_device_in_place("t" + std::to_string(i), tensors[static_cast<std::size_t>(i)]));
    }
    std::vector<Submission> submissions;
    const StreamDependencyPtr flight = mine.depart();
    for (const Operation& operation : operations) {
      submissions.push_back(operation.submission());
      submissions.back().dependency = flight;
    }
    finish_on_device(engine, engine.submit(0, submissions, Intent::kWait));
    mine.synchronize();
    for (int i = 0; i < 20; ++i) {
      CHECK(tensors[static_cast<std::size_t>(i)].values() ==
            std::vector{2.0F * static_cast<float>(i)});
    }
  });
  CHECK(stand_in_calls("ncclAllReduce") < 40);
}

TEST_CASE("broadcast of GPU tensors, each way") {
  for (const DeviceOptions& way : all_ways()) {
    DeviceWorld world(3, way);
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      const DeviceFloats tensor = mine.floats({static_cast<float>(rank), 7.0F});
      Operation operation = on_device_in_place("x", tensor, Kind::kBroadcast);
      operation.requests[0].root = 2;
      finish_on_device(engine, submit(engine, mine, operation));
      mine.synchronize();
      CHECK(tensor.values() == std::vector{2.0F, 7.0F});
    });
  }
}

TEST_CASE("allgather of GPU tensors, each way, rows alike or not") {
  for (const DeviceOptions& way : all_ways()) {
    DeviceWorld world(3, way);
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      for (const bool is_alike : {true, false}) {
        const std::int64_t rows = is_alike ? 1 : rank;
        const std::vector values(static_cast<std::size_t>(2 * rows), static_cast<float>(rank));
        const DeviceFloats tensor = mine.floats(values);
        const auto outputs = finish_on_device(
            engine,
            submit(engine, mine,
                   on_device(is_alike ? "a" : "b", Kind::kAllgather, tensor, nullptr, {rows, 2})));
        mine.synchronize();
        REQUIRE(outputs.size() == 1);
        CHECK(outputs[0].shape == std::vector<std::int64_t>{3, 2});
        CHECK(floats_of(outputs[0]) == (is_alike ? std::vector<float>{0, 0, 1, 1, 2, 2}
                                                 : std::vector<float>{1, 1, 2, 2, 2, 2}));
      }
    });
  }
}

TEST_CASE("reducescatter of GPU tensors, each way, parts alike or not") {
  for (const DeviceOptions& way : all_ways()) {
    DeviceWorld world(2, way);
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      for (const std::int64_t rows : {2, 3}) {
        std::vector<float> values;
        for (std::int64_t i = 0; i < rows; ++i) values.push_back(static_cast<float>(10 * i + rank));
        const DeviceFloats tensor = mine.floats(values);
        const auto outputs = finish_on_device(
            engine,
            submit(engine, mine,
                   on_device(std::to_string(rows), Kind::kReducescatter, tensor, nullptr, {rows})));
        mine.synchronize();
        std::vector<float> expected{rank == 0 ? 1.0F : 21.0F};
        if (rows == 3) expected = rank == 0 ? std::vector{1.0F, 21.0F} : std::vector{41.0F};
        CHECK(floats_of(outputs.at(0)) == expected);
      }
    });
  }
}

TEST_CASE("alltoall of GPU tensors, each way") {
  for (const DeviceOptions& way : all_ways()) {
    DeviceWorld world(2, way);
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      // Rank 0 keeps one row and gives two, rank 1 gives one and keeps none.
      const DeviceFloats tensor =
          mine.floats(rank == 0 ? std::vector<float>{1, 2, 3} : std::vector<float>{4});
      Operation operation = on_device("x", Kind::kAlltoall, tensor, nullptr, {rank == 0 ? 3 : 1});
      operation.splits =
          rank == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{1, 0};
      const auto outputs = finish_on_device(engine, submit(engine, mine, operation));
      mine.synchronize();
      CHECK(floats_of(outputs.at(0)) ==
            (rank == 0 ? std::vector<float>{1, 4} : std::vector<float>{2, 3}));
      const auto* splits = reinterpret_cast<const std::int32_t*>(outputs.at(1).bytes.get());
      CHECK(std::vector(splits, splits + 2) ==
            (rank == 0 ? std::vector<std::int32_t>{1, 1} : std::vector<std::int32_t>{2, 0}));
    });
  }
}

TEST_CASE("what NCCL cannot do goes through the host in the same bucket") {
  DeviceWorld world(2);
  world.run([](int rank, Engine& engine, DeviceRank& mine) {
    const DeviceFloats sum = mine.floats({static_cast<float>(rank + 1)});
    const DeviceFloats halves = mine.floats({static_cast<float>(rank + 1)});
    Operation both = on_device_in_place("x", sum);
    both.requests.push_back(both.requests.front());
    both.requests[1].dtype = Dtype::kInt16;
    both.requests[1].dims = {2};
    both.tensors.push_back({.in = halves.data(), .out = halves.data(), .device = mine.device});
    for (Request& request : both.requests) request.is_grouped = true;
    finish_on_device(engine, submit(engine, mine, both));
    mine.synchronize();
    CHECK(sum.values() == std::vector{3.0F});
    CHECK(halves.values() == std::vector{INFINITY});  // the bits of 1.0 and 2.0, added
  });
  CHECK(stand_in_calls("ncclAllReduce") == 2);
  CHECK(stand_in_calls("cuMemcpyAsync to the host") == 2);
}

TEST_CASE("a tensor on another GPU than the set's is copied there and back, each way") {
  for (const DeviceOptions& way : all_ways()) {
    DeviceWorld world(2, way);
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      const DeviceFloats first = mine.floats({1.0F});
      finish_on_device(engine, submit(engine, mine, on_device_in_place("x", first)));
      const DeviceRank far{.gpu = mine.gpu,
                           .device = 4 + rank,
                           .stream = std::make_unique<CudaStream>(mine.gpu->driver(), 4 + rank)};
      const DeviceFloats tensor = far.floats({static_cast<float>(rank)});
      finish_on_device(engine, submit(engine, far, on_device_in_place("y", tensor)));
      far.synchronize();
      CHECK(tensor.values() == std::vector{1.0F});
    });
    CHECK(stand_in_calls("ncclAllReduce") == (is_over_nccl(way) ? 4 : 0));
  }
}

TEST_CASE("a rank that has joined takes part with zeros, each way") {
  for (const DeviceOptions& way : all_ways()) {
    DeviceWorld world(2, way);
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      if (rank == 0) {
        const DeviceFloats tensor = mine.floats({5.0F});
        finish_on_device(engine, submit(engine, mine, on_device_in_place("x", tensor)));
        mine.synchronize();
        CHECK(tensor.values() == std::vector{5.0F});
      }
      CHECK(join(engine) == 0);
    });
  }
}

TEST_CASE("process sets have communicators of their own, each way") {
  for (const DeviceOptions& way : all_ways()) {
    DeviceWorld world(3, way);
    world.engines().add_set(1, {0, 2});
    world.run([](int rank, Engine& engine, DeviceRank& mine) {
      const DeviceFloats of_all = mine.floats({static_cast<float>(rank + 1)});
      const DeviceFloats of_set = mine.floats({static_cast<float>(rank + 1)});
      const HandleId all = submit(engine, mine, on_device_in_place("x", of_all), Intent::kCompute);
      if (rank != 1) {
        Operation broadcast = on_device_in_place("x", of_set, Kind::kBroadcast);
        broadcast.requests[0].root = 2;
        finish_on_device(engine, submit(engine, mine, broadcast, Intent::kWait, 1));
        const Operation sum = on_device_in_place("y", of_set);
        finish_on_device(engine, submit(engine, mine, sum, Intent::kWait, 1));
      }
      finish_on_device(engine, all);
      mine.synchronize();
      CHECK(of_all.values() == std::vector{6.0F});
      CHECK(of_set.values() == std::vector{rank == 1 ? 2.0F : 6.0F});
    });
    const long channels = is_over_nccl(way) ? way.streams : 0;
    CHECK(stand_in_calls("ncclCommInitRankConfig") == 5 * channels);
  }
}

TEST_CASE("tensors of the host and of GPUs run side by side") {
  DeviceWorld world(2);
  world.run([](int rank, Engine& engine, DeviceRank& mine) {
    for (int round = 0; round < 20; ++round) {
      const DeviceFloats on_gpu = mine.floats({static_cast<float>(rank)});
      std::vector<float> on_host{1.0F};
      const HandleId first =
          submit(engine, mine, on_device_in_place("x", on_gpu), Intent::kCompute);
      const HandleId second = submit(engine, in_place("y", on_host), Intent::kCompute);
      finish(engine, second);
      finish_on_device(engine, first);
      mine.synchronize();
      CHECK(on_gpu.values() == std::vector{1.0F});
      CHECK(on_host == std::vector{2.0F});
    }
  });
}

}  // namespace
}  // namespace hvd::test
