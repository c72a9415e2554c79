// Results that no thread waits for: they go to a continuation.
#include <doctest/doctest.h>

#include <atomic>
#include <optional>

#include "world_of_threads.h"

namespace hvd::test {
namespace {

// What a continuation got; safe to read once is_done.
struct Landing {
  std::atomic<int> calls{0};
  HandleTable::Result result;

  HandleTable::Continuation continuation() {
    return [this](HandleTable::Result given) {
      result = std::move(given);
      calls.fetch_add(1);
    };
  }
  void await() const {
    const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
    while (calls.load() == 0 && now_ns() < deadline) std::this_thread::yield();
    REQUIRE(calls.load() == 1);
  }
};

HandleId start(Engine& engine, const Operation& operation, Landing& landing) {
  const Submission submission = operation.submission();
  return engine.submit(0, {&submission, 1}, Intent::kCompute, landing.continuation());
}

TEST_CASE("a continuation gets the result without a wait") {
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    for (int round = 0; round < 100; ++round) {
      std::vector<float> values(1000, static_cast<float>(rank));
      Landing landing;
      const HandleId handle = start(engine, in_place("x", values), landing);
      landing.await();
      CHECK(!landing.result.error);
      CHECK(values.back() == 3.0F);
      CHECK(!engine.contains(handle));
    }
  });
}

TEST_CASE("a continuation gets what the engine allocated") {
  WorldOfThreads world(2);
  world.run([](int rank, Engine& engine) {
    std::vector<float> values(static_cast<std::size_t>(rank) + 1, 1.0F);
    Operation operation = in_place("x", values, Kind::kAllgather);
    operation.tensors[0].out = nullptr;
    Landing landing;
    start(engine, operation, landing);
    landing.await();
    REQUIRE(landing.result.outputs.size() == 1);
    CHECK(landing.result.outputs[0].shape == std::vector<std::int64_t>{3});
  });
}

TEST_CASE("a receiver hears of a broadcast that its root did alone") {
  WorldOfThreads world(2);
  std::atomic<int> submitted{0};
  world.run([&](int rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values(10, static_cast<float>(rank));
      Operation operation = in_place("x", values, Kind::kBroadcast);
      operation.requests.front().root = 1;
      Landing landing;
      while (rank == 1 && submitted.load() == round) std::this_thread::yield();
      start(engine, operation, landing);
      if (rank == 0) submitted.fetch_add(1);
      const std::int64_t begun = now_ns();
      landing.await();
      // Half of the stall time: when the background thread next looks by itself.
      CHECK(now_ns() - begun < Nanoseconds(std::chrono::seconds(20)).count());
      CHECK(values.back() == 1.0F);
    }
  });
}

TEST_CASE("a continuation may submit the next operation") {
  constexpr int kSteps = 50;
  WorldOfThreads world(2);
  world.run([](int, Engine& engine) {
    std::vector<float> values(10, 1.0F);
    const Operation operation = in_place("x", values);
    Landing last;
    std::function<void(int)> step = [&](int steps_left) {
      const Submission submission = operation.submission();
      if (steps_left == 0) {
        engine.submit(0, {&submission, 1}, Intent::kCompute, last.continuation());
        return;
      }
      engine.submit(0, {&submission, 1}, Intent::kCompute,
                    [&, steps_left](const HandleTable::Result&) { step(steps_left - 1); });
    };
    values.assign(values.size(), 0.0F);
    step(kSteps);
    last.await();
    CHECK(!last.result.error);
  });
}

TEST_CASE("a continuation may wait for another operation") {
  WorldOfThreads world(2);
  world.run([](int rank, Engine& engine) {
    std::vector<float> first(10, 1.0F), second(10, 2.0F);
    const Operation inner = in_place("inner", second);
    Landing outer;
    std::string error = "not called";
    const Operation operation = in_place("outer", first);
    const Submission submission = operation.submission();
    engine.submit(0, {&submission, 1}, Intent::kCompute, [&](HandleTable::Result result) {
      error = error_of([&] { finish(engine, submit(engine, inner)); });
      outer.continuation()(std::move(result));
    });
    // Another thread helps meanwhile, or not.
    std::vector<float> third(10, 3.0F);
    if (rank == 0) engine.poll(submit(engine, in_place("unrelated", third), Intent::kCompute));
    outer.await();
    CHECK(error == "");
    CHECK(second.front() == 4.0F);
    if (rank == 1) submit(engine, in_place("unrelated", third), Intent::kCompute);
    leave_alone(engine, 0);
  });
}

TEST_CASE("a continuation runs while a thread waits for something else") {
  WorldOfThreads world(2);
  world.run([](int rank, Engine& engine) {
    std::vector<float> values(10, 1.0F), other(10, 1.0F);
    Landing landing;
    start(engine, in_place("x", values), landing);
    if (rank == 0) landing.await();  // rank 1 sits in the wait meanwhile
    finish(engine, submit(engine, in_place("y", other)));
    landing.await();
    CHECK(values.front() == 2.0F);
  });
}

TEST_CASE("a continuation gets a mismatch, a lost world and a shutdown") {
  WorldOfThreads world(2);
  world.run([](int rank, Engine& engine) {
    std::vector<float> values(static_cast<std::size_t>(rank) + 3);
    Landing landing;
    start(engine, in_place("allreduce.x", values), landing);
    landing.await();
    REQUIRE(landing.result.error.has_value());
    CHECK(landing.result.error->code() == ErrorCode::kMismatch);
  });
  Landing pending;
  std::vector<float> values(5);
  start(world.engine(0), in_place("allreduce.y", values), pending);
  world.engine(0).shutdown();
  REQUIRE(pending.calls.load() == 1);
  CHECK(pending.result.error->code() == ErrorCode::kAborted);
}

TEST_CASE("a continuation hears of a rank that left, before or after the submission") {
  for (const bool is_before : {true, false}) {
    WorldOfThreads world(2);
    std::vector<float> values(5), first(5), second(5);
    // Both background threads are at rest afterwards.
    std::thread other(
        [&] { finish(world.engine(1), submit(world.engine(1), in_place("a", first))); });
    finish(world.engine(0), submit(world.engine(0), in_place("a", second)));
    other.join();
    Landing landing;
    if (is_before) world.engine(1).shutdown();
    start(world.engine(0), in_place("x", values), landing);
    if (!is_before) world.engine(1).shutdown();
    landing.await();
    CHECK(landing.result.error->code() == ErrorCode::kPeerLost);
  }
}

TEST_CASE("no operations are done at once") {
  WorldOfThreads world(2);
  Landing landing;
  world.engine(0).submit(0, {}, Intent::kCompute, landing.continuation());
  CHECK(landing.calls.load() == 1);
}

TEST_CASE("after a loss every refusal names its operation") {
  WorldOfThreads world(2);
  std::vector<float> values(5);
  world.engine(0).shutdown();
  CHECK(error_of([&] {
          submit(world.engine(0), in_place("allreduce.late", values));
        }).starts_with("allreduce 'late': Horovod has been shut down"));
}

TEST_CASE("what cannot be submitted throws and calls no continuation") {
  WorldOfThreads world(1);
  std::vector<float> values(5);
  Operation operation = in_place("x", values);
  operation.requests[0].kind = Kind::kBroadcast;
  operation.requests[0].root = 7;
  Landing landing;
  CHECK(error_of([&] { start(world.engine(0), operation, landing); }) != "");
  CHECK(landing.calls.load() == 0);
}

TEST_CASE("a wait that is given up can be continued") {
  WorldOfThreads world(2);
  std::vector<float> mine(10, 1.0F), other(10, 1.0F);
  Engine& engine = world.engine(0);
  const HandleId handle = submit(engine, in_place("x", mine));
  CHECK(!engine.wait(handle, std::chrono::milliseconds(1)));
  Landing late, at_once;
  engine.continue_with(handle, late.continuation());
  CHECK(late.calls.load() == 0);
  finish(world.engine(1), submit(world.engine(1), in_place("x", other)));
  late.await();
  CHECK(mine.front() == 2.0F);
  const HandleId second = submit(engine, in_place("z", mine), Intent::kCompute);
  finish(world.engine(1), submit(world.engine(1), in_place("z", other)));
  while (!engine.wait(second, kPatience)) continue;
  engine.continue_with(second, at_once.continuation());
  CHECK(at_once.calls.load() == 1);
}

}  // namespace
}  // namespace hvd::test
