// Every wait ends: mismatches, ranks that leave, ranks that never come.
#include <doctest/doctest.h>

#include "contains.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

TEST_CASE("a mismatch is an error on every rank, and the engine stays usable") {
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(rank == 2 ? 5 : 4, 1.0F);
      const std::string text =
          error_of([&] { finish(engine, submit(engine, in_place("allreduce.w", values))); });
      CHECK(contains(text, "allreduce 'w': Mismatched ALLREDUCE tensor shapes"));
      CHECK(contains(text, "[5] float32"));
      CHECK(contains(text, "[4] float32"));
      std::vector<float> good(4, 1.0F);
      finish(engine, submit(engine, in_place("allreduce.w", good)));
      CHECK(good.front() == 3.0F);
    }
  });
}

TEST_CASE("a mismatch in a bucket leaves the other tensors alone") {
  WorldOfThreads world(2);
  world.run([](int rank, Engine& engine) {
    std::vector<float> good(10, 1.0F), bad(rank == 0 ? 3 : 4), fine(10, 1.0F);
    const std::vector<Operation> all{in_place("good", good), in_place("bad", bad),
                                     in_place("fine", fine)};
    const std::string text = error_of([&] { finish(engine, submit_all(engine, all)); });
    CHECK(contains(text, "allreduce 'bad'"));
    CHECK(good.front() == 2.0F);
    CHECK(fine.front() == 2.0F);
  });
}

TEST_CASE("a rank that shuts down ends the pending and later operations of the others") {
  WorldOfThreads world(3);
  world.run([&world](int rank, Engine& engine) {
    std::vector<float> values(10, 1.0F);
    if (rank == 1) {
      engine.shutdown();
      return;
    }
    const Error error =
        caught([&] { finish(engine, submit(engine, in_place("allreduce.x", values))); });
    CHECK_MESSAGE(contains(error.what(), "rank 1 has shut down"), error.what());
    CHECK(error.subject().ranks.empty());  // it may be on its way to another world
    CHECK(error.subject().operation == "allreduce 'x'");
    CHECK(
        contains(error_of([&] { submit(engine, in_place("y", values)); }), "rank 1 has shut down"));
  });
}

TEST_CASE("a rank may leave as soon as its own part is done") {
  for (int round = 0; round < 30; ++round) {
    WorldOfThreads world(3);
    world.run([&world](int rank, Engine& engine) {
      std::vector<float> large(300'000, 1.0F), small(5, 1.0F);
      const HandleId first = submit(engine, in_place("large", large), Intent::kCompute);
      const HandleId second = submit(engine, in_place("small", small), Intent::kCompute);
      finish(engine, first);
      finish(engine, second);
      CHECK(large.back() == 3.0F);
      CHECK(small.back() == 3.0F);
      world.end(rank);
    });
  }
}

TEST_CASE("after a failure nothing touches the tensors again") {
  for (const Kind kind : {Kind::kAllreduce, Kind::kAllgather, Kind::kBroadcast}) {
    WorldOfThreads world(3);
    std::atomic<int> started{0};
    world.run([&](int rank, Engine& engine) {
      auto values = std::make_unique<std::vector<float>>(4'000'000, 1.0F);
      Operation operation = in_place("allreduce.big", *values, kind);
      if (kind == Kind::kAllgather) operation.tensors[0].out = nullptr;
      if (rank == 2) {
        submit(engine, operation, Intent::kMore);
        while (started.load() < 2) std::this_thread::yield();
        engine.shutdown();
        return;
      }
      ++started;
      error_of([&] { finish(engine, submit(engine, operation)); });  // or it was done in time
      values.reset();
      engine.leave_to_background();
      CHECK(error_of([&] {
              std::vector<float> more(3);
              finish(engine, submit(engine, in_place("more", more)));
            }) != "");
    });
  }
}

TEST_CASE("shutdown fails what is pending on this rank") {
  WorldOfThreads world(2);
  std::vector<float> values(10);
  Engine& engine = world.engine(0);
  const HandleId handle = submit(engine, in_place("allreduce.x", values), Intent::kCompute);
  engine.shutdown();
  engine.shutdown();
  CHECK(
      contains(error_of([&] { finish(engine, handle); }), "Horovod has been shut down on rank 0"));
  CHECK(contains(error_of([&] { submit(engine, in_place("y", values)); }), "shut down"));
}

TEST_CASE("shutdown ends a wait of another thread") {
  WorldOfThreads world(2);
  std::vector<float> values(10);
  Engine& engine = world.engine(0);
  const HandleId handle = submit(engine, in_place("x", values));
  std::string text;
  std::thread waiter([&] { text = error_of([&] { finish(engine, handle); }); });
  engine.shutdown();
  waiter.join();
  CHECK(contains(text, "shut down"));
}

TEST_CASE("an error of missing ranks says which, of which host and for which operation") {
  WorldOfThreads world(5, [](EngineConfig& config) {
    config.stall_check_time_s = 0.05;
    config.stall_shutdown_time_s = 0.2;
    config.log.level = LogLevel::kFatal;
    config.peer_hosts = {"near", "far", "far", "far", "far"};
  });
  Engine& engine = world.engine(0);
  for (const std::string& name : std::vector<std::string>{"late", "later"}) {
    std::vector<float> values(10);
    const Error error =
        caught([&] { finish(engine, submit(engine, in_place("allreduce." + name, values))); });
    CHECK(error.code() == ErrorCode::kTimeout);
    CHECK(error.subject().ranks == std::vector<int>{1, 2, 3, 4});
    CHECK(error.subject().host == "far");
    CHECK(error.subject().operation == "allreduce '" + name + "'");
  }
}

TEST_CASE("a rank that never submits fails the others after the stall shutdown time, by name") {
  WorldOfThreads world(3, [](EngineConfig& config) {
    config.stall_check_time_s = 0.05;
    config.stall_shutdown_time_s = 0.2;
    config.log.level = LogLevel::kFatal;
    config.peer_names = {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"};
  });
  world.run([](int rank, Engine& engine) {
    if (rank == 1) return;
    std::vector<float> values(10);
    const std::string text =
        error_of([&] { finish(engine, submit(engine, in_place("allreduce.late", values))); });
    CHECK_MESSAGE(contains(text, "allreduce 'late' waits for ranks that did not submit it"), text);
    CHECK(contains(text, "Missing ranks: 1 (rank 1 (b))"));
  });
}

Operation join() {
  return {.name = "",
          .requests = {float_request(Kind::kJoin, {})},
          .tensors = {{.in = nullptr, .out = nullptr}},
          .splits = {}};
}

TEST_CASE("a rank that has joined is not stalled while the others go on, but when they stop") {
  constexpr double kStallS = 1;
  WorldOfThreads world(2, [](EngineConfig& config) {
    config.stall_check_time_s = 0.1;
    config.stall_shutdown_time_s = kStallS;
    config.log.level = LogLevel::kFatal;
  });
  world.run([](int rank, Engine& engine) {
    const std::int64_t end = now_ns() + static_cast<std::int64_t>(1.5e9 * kStallS);
    while (rank == 0 && now_ns() < end) {
      std::vector<float> values(10, 1.0F);
      finish(engine, submit(engine, in_place("loss", values)));
    }
    finish(engine, submit(engine, join()));
    if (rank == 0) return;
    const std::string text = error_of([&] { finish(engine, submit(engine, join())); });
    CHECK(contains(text, "join"));
    CHECK(contains(text, "Missing ranks: 0"));
  });
}

TEST_CASE("the stall check works while no thread waits") {
  WorldOfThreads world(2, [](EngineConfig& config) {
    config.stall_check_time_s = 0.05;
    config.stall_shutdown_time_s = 0.2;
    config.log.level = LogLevel::kFatal;
  });
  std::vector<float> values(10);
  Engine& engine = world.engine(0);
  submit(engine, in_place("x", values), Intent::kCompute);
  const auto is_over = [&] {
    return contains(error_of([&] { submit(engine, in_place("", values), Intent::kCompute); }),
                    "did not submit");
  };
  const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
  while (!is_over() && now_ns() < deadline) std::this_thread::yield();
  CHECK(is_over());
}

TEST_CASE("a wait that is given up leaves the operation to the background thread") {
  std::vector<float> mine(100'000, 1.0F), theirs(100'000, 1.0F);
  WorldOfThreads world(2);  // ends before the tensors do
  Engine& engine = world.engine(0);
  const HandleId handle = submit(engine, in_place("x", mine));
  CHECK(!engine.wait(handle, std::chrono::milliseconds(20)));
  engine.leave_to_background();
  finish(world.engine(1), submit(world.engine(1), in_place("x", theirs)));
  CHECK(theirs.back() == 2.0F);
}

TEST_CASE("worlds come and go") {
  for (int round = 0; round < 50; ++round) {
    WorldOfThreads world(2);
    world.run([](int, Engine& engine) {
      std::vector<float> values(10, 1.0F);
      finish(engine, submit(engine, in_place("x", values)));
      CHECK(values.front() == 2.0F);
    });
  }
}

}  // namespace
}  // namespace hvd::test
