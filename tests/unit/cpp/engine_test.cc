#include "runtime/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "world_of_threads.h"

namespace hvd::test {
namespace {

TEST_CASE("allreduce sums over the ranks") {
  for (const int size : {1, 2, 3, 4}) {
    WorldOfThreads world(size);
    world.run([size](int rank, Engine& engine) {
      for (const std::size_t count : {0, 1, 1000, 100'000}) {
        std::vector<float> values(count, static_cast<float>(rank + 1));
        finish(engine, submit(engine, in_place("x", values)));
        const float expected = static_cast<float>(size * (size + 1)) / 2;
        for (const float value : values) REQUIRE(value == expected);
      }
    });
  }
}

TEST_CASE("ranks may submit in any order, and wait in any order") {
  constexpr int kTensors = 200;
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<std::vector<float>> tensors(kTensors);
    std::vector<std::string> names;
    for (int i = 0; i < kTensors; ++i) names.push_back("t" + std::to_string(i));
    std::vector<int> order(kTensors);
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 5; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<HandleId> handles(kTensors);
      for (const int i : order) {
        tensors[i].assign(static_cast<std::size_t>(i) * 7, static_cast<float>(i + rank));
        handles[i] = submit(engine, in_place(names[i], tensors[i]), Intent::kCompute);
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) finish(engine, handles[i]);
      for (int i = 0; i < kTensors; ++i) {
        for (const float value : tensors[i]) REQUIRE(value == static_cast<float>(3 * i + 3));
      }
    }
  });
}

TEST_CASE("without a wait the background thread completes what was submitted") {
  WorldOfThreads world(2);
  world.run([](int, Engine& engine) {
    std::vector<float> values(1000, 1.0F);
    const HandleId handle = submit(engine, in_place("x", values), Intent::kCompute);
    const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
    while (!engine.poll(handle) && now_ns() < deadline) std::this_thread::yield();
    REQUIRE(engine.poll(handle));
    engine.take(handle);
    CHECK(values.front() == 2.0F);
  });
}

TEST_CASE("one handle may cover many tensors, batched differently on every rank") {
  WorldOfThreads world(2);
  world.run([](int rank, Engine& engine) {
    std::vector<std::vector<float>> tensors(6, std::vector<float>(10, 1.0F));
    const std::vector<std::string> names{"a", "b", "c", "d", "e", "f"};
    std::vector<Operation> all;
    for (std::size_t i = 0; i < 6; ++i) all.push_back(in_place(names[i], tensors[i]));
    const std::size_t cut = rank == 0 ? 2 : 5;
    const HandleId first = submit_all(engine, std::span(all).first(cut), Intent::kMore);
    const HandleId second = submit_all(engine, std::span(all).subspan(cut));
    finish(engine, second);
    finish(engine, first);
    for (const auto& tensor : tensors) CHECK(tensor.front() == 2.0F);
  });
}

TEST_CASE("broadcast gives the root's values to all, several at once") {
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    std::vector<HandleId> handles;
    std::vector<std::vector<float>> tensors(6);
    for (int i = 0; i < 6; ++i) {
      tensors[i].assign(i == 5 ? 400'000 : 10, static_cast<float>(100 * i + rank));
      Operation operation = in_place("", tensors[i], Kind::kBroadcast);
      operation.requests[0].root = i % 3;
      handles.push_back(submit(engine, operation, Intent::kCompute));
    }
    for (const HandleId handle : handles) finish(engine, handle);
    for (int i = 0; i < 6; ++i) {
      for (const float value : tensors[i]) REQUIRE(value == static_cast<float>(100 * i + i % 3));
    }
  });
}

TEST_CASE("allgather joins rows by rank") {
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    std::vector<float> rows(static_cast<std::size_t>(2 * rank), static_cast<float>(rank));
    Operation operation = in_place("rows", rows, Kind::kAllgather);
    operation.requests[0] = float_request(Kind::kAllgather, {rank, 2});
    operation.tensors[0].out = nullptr;
    const std::vector<Output> outputs = finish(engine, submit(engine, operation));
    REQUIRE(outputs.size() == 1);
    CHECK(outputs[0].shape == std::vector<std::int64_t>{3, 2});
    const auto* values = reinterpret_cast<const float*>(outputs[0].bytes.get());
    CHECK(std::vector<float>(values, values + 6) == std::vector<float>{1, 1, 2, 2, 2, 2});
  });
}

TEST_CASE("no rank leaves a barrier before the last has come") {
  WorldOfThreads world(4);
  std::atomic<int> arrived{0};
  world.run([&arrived](int, Engine& engine) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      finish(engine, submit(engine, barrier()));
      REQUIRE(arrived.load() >= 4 * round);
      finish(engine, submit(engine, barrier()));
    }
  });
}

TEST_CASE("several threads of one rank may wait at the same time") {
  WorldOfThreads world(2);
  world.run([](int, Engine& engine) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&engine, thread] {
        const std::string name = "thread " + std::to_string(thread);
        for (int round = 0; round < 50; ++round) {
          std::vector<float> values(100, 1.0F);
          finish(engine, submit(engine, in_place(name, values)));
          CHECK(values.front() == 2.0F);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_CASE("a name in flight may not be used again, not even twice in one call") {
  WorldOfThreads world(2);
  std::vector<float> values(4), other(4);
  Engine& engine = world.engine(0);
  const HandleId handle = submit(engine, in_place("allreduce.x", values));
  CHECK(error_of([&] { submit(engine, in_place("allreduce.x", other)); }) ==
        "allreduce 'x': a tensor of this name is still being processed on rank 0; synchronize it "
        "first or use another name");
  const std::vector<Operation> twice{in_place("y", other), in_place("y", other)};
  CHECK(error_of([&] { submit_all(engine, twice); }) ==
        "allreduce 'y': the name occurs twice in one call");
  const HandleId others = submit(world.engine(1), in_place("allreduce.x", other), Intent::kCompute);
  finish(engine, handle);
  finish(world.engine(1), others);
  finish(engine, engine.submit(0, {}, Intent::kWait));  // nothing is done at once
}

TEST_CASE("what cannot be right is refused before anything is sent") {
  WorldOfThreads world(2);
  std::vector<float> values(4);
  Operation operation = in_place("x", values, Kind::kBroadcast);
  operation.requests[0].root = 2;
  CHECK(error_of([&] {
          submit(world.engine(0), operation);
        }).find("invalid root rank 2; the ranks are 0, 1") != std::string::npos);
  operation = in_place("x", values);
  operation.requests[0].dtype = Dtype::kBool;
  operation.requests[0].op = ReduceOp::kAverage;
  CHECK(error_of([&] { submit(world.engine(0), operation); }) != "");
}

TEST_CASE("what ran is in the flight recorder") {
  WorldOfThreads world(1);
  std::vector<float> values(4);
  finish(world.engine(0), submit(world.engine(0), in_place("x", values)));
  const RecorderView& recorder = world.engine(0).tracer().recorder();
  std::vector<EventKind> kinds;
  for (const Event& event : recorder.read(0).events) {
    if (event.kind != EventKind::kBlocked) kinds.push_back(event.kind);  // after a long wait only
  }
  CHECK(kinds == std::vector{EventKind::kWorld, EventKind::kSubmit, EventKind::kBucketStart,
                             EventKind::kFused, EventKind::kBucketDone});
  const Event submission = recorder.read(1).events.front();
  CHECK(submission.value == 4 * sizeof(float));
  const auto label = recorder.label(submission.subject);
  REQUIRE(label.has_value());
  CHECK(label->text() == "x");
  CHECK(label->dims[0] == 4);
}

TEST_CASE("names come and go without a cache while one of them waits for the other rank") {
  WorldOfThreads world(2, [](EngineConfig& config) { config.cache_capacity = 0; });
  world.run([](int rank, Engine& engine) {
    std::mt19937 random(5);
    std::vector<float> early(3, 1.0F);
    for (int round = 0; round < 300; ++round) {
      const std::string waiting = "early " + std::to_string(random() % 5);
      const bool is_first = static_cast<int>(random() % 2) == rank;
      HandleId handle = 0;
      if (is_first) handle = submit(engine, in_place(waiting, early), Intent::kMore);
      for (int i = 0; i < 4; ++i) {
        std::vector<float> values(4, 1.0F);
        finish(engine, submit(engine, in_place("x" + std::to_string(random() % 7), values)));
        CHECK(values[3] == 2.0F);
      }
      if (!is_first) handle = submit(engine, in_place(waiting, early));
      finish(engine, handle);
    }
  });
}

TEST_CASE("ten thousand tensors at once, with a small cache") {
  constexpr std::size_t kTensors = 10'000;
  WorldOfThreads world(2, [](EngineConfig& config) { config.cache_capacity = 16; });
  world.run([](int, Engine& engine) {
    std::vector<std::vector<float>> tensors(kTensors, std::vector<float>(3, 1.0F));
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kTensors; ++i) names.push_back("t" + std::to_string(i));
    for (int round = 0; round < 3; ++round) {
      std::vector<Operation> all;
      for (std::size_t i = 0; i < kTensors; ++i) all.push_back(in_place(names[i], tensors[i]));
      finish(engine, submit_all(engine, all));
    }
    for (const auto& tensor : tensors) REQUIRE(tensor[2] == 8.0F);
  });
}

}  // namespace
}  // namespace hvd::test
