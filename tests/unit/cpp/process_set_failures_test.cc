// Ranks that leave, die or never come while several process sets are under way.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>

#include "contains.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

void check_quickly(EngineConfig& config) {
  config.stall_check_time_s = 0.05;
  config.stall_shutdown_time_s = 0.2;
  config.log.level = LogLevel::kFatal;
  config.peer_names = {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)", "rank 3 (d)"};
}

TEST_CASE("the stall check names the set and world ranks") {
  WorldOfThreads world(4, check_quickly);
  world.add_set(1, {1, 3});
  std::vector<float> values(10);
  Engine& engine = world.engine(1);
  CHECK(contains(error_of([&] {
                   finish(engine,
                          submit(engine, in_place("allreduce.late", values), Intent::kWait, 1));
                 }),
                 "allreduce 'late' of process set 1 waits for ranks that did not submit it"));
  const std::string text = error_of([&] { submit(engine, in_place("", values)); });
  CHECK(contains(text, "Missing ranks: 3 (rank 3 (d))"));
}

TEST_CASE("a set that is stuck is found while another one is busy") {
  WorldOfThreads world(2, [](EngineConfig& config) {
    check_quickly(config);
    config.stall_shutdown_time_s = 2;  // longer than a loaded machine keeps a thread away
  });
  world.add_set(1, {0, 1});
  std::vector<float> late(10);
  submit(world.engine(0), in_place("late", late), Intent::kCompute, 1);
  std::string texts[2];
  world.run([&](int rank, Engine& engine) {
    const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
    while (texts[rank].empty() && now_ns() < deadline) {
      std::vector<float> values(10);
      texts[rank] = error_of([&] { finish(engine, submit(engine, in_place("busy", values))); });
    }
  });
  for (const std::string& text : texts) {
    CHECK(contains(text, "'late' of process set 1 waits for ranks that did not submit it"));
  }
}

TEST_CASE("a member that leaves ends the sets that need it") {
  for (const int cores : {1, 8}) {
    WorldOfThreads world(3, [cores](EngineConfig& config) { config.usable_cores = cores; });
    world.add_set(1, {0, 1});
    world.add_set(2, {0, 2});
    world.run([](int rank, Engine& engine) {
      std::vector<float> large(500'000, 1.0F), needed(500'000, 1.0F), all(10, 1.0F);
      finish(engine, submit(engine, in_place("all", all)));
      if (rank == 2) {
        engine.shutdown();
        return;
      }
      HandleId handle = 0;
      std::string text = error_of([&] {
        if (rank == 0) handle = submit(engine, in_place("needed", needed), Intent::kCompute, 2);
        finish(engine, submit(engine, in_place("large", large), Intent::kCompute, 1));
        if (rank == 0) finish(engine, handle);
        finish(engine, submit(engine, in_place("all", all)));
      });
      const bool is_told = contains(text, "rank 2 has shut down") ||
                           (rank == 1 && contains(text, "rank 0 has given up"));
      CHECK(is_told);
    });
  }
}

TEST_CASE("members may leave when their part is done while other sets are busy") {
  for (int round = 0; round < 20; ++round) {
    WorldOfThreads world(4);
    world.add_set(1, {0, 1});
    world.add_set(2, {2, 3});
    world.add_set(3, {1, 2});
    world.run([&world](int rank, Engine& engine) {
      std::vector<float> middle(300'000, 1.0F), side(300'000, 1.0F);
      HandleId inner = 0;
      if (rank == 1 || rank == 2) {
        inner = submit(engine, in_place("x", middle), Intent::kCompute, 3);
      }
      finish(engine, submit(engine, in_place("x", side), Intent::kCompute, rank < 2 ? 1 : 2));
      CHECK(side.back() == 2.0F);
      if (inner != 0) {
        finish(engine, inner);
        CHECK(middle.back() == 2.0F);
      }
      world.end(rank);
    });
  }
}

TEST_CASE("a rank that dies ends every set of the others, whether it was a member or not") {
  for (const bool has_waiters : {true, false}) {
    int ends[2][2];  // what the two survivors watch
    for (auto& end : ends) REQUIRE(pipe(end) == 0);
    const auto watched = [&](int rank) {
      std::vector<WatchedProcess> processes;
      if (rank < 2) processes.push_back({.rank = 2, .pidfd = ends[rank][0], .pid = 0});
      return processes;
    };
    WorldOfThreads world(
        3, [](EngineConfig& config) { config.peer_names = {"rank 0", "rank 1", "rank 2 (dead)"}; },
        watched);
    world.add_set(1, {0, 1});
    world.add_set(2, {1, 2});
    std::atomic<int> ready{0};
    world.run([&](int rank, Engine& engine) {
      if (rank == 2) {
        while (ready.load() < 2) std::this_thread::yield();
        for (auto& end : ends) close(end[1]);
        return;
      }
      std::vector<float> values[3]{std::vector<float>(10), std::vector<float>(10),
                                   std::vector<float>(10)};
      std::vector<HandleId> handles;
      for (int set = 0; set < 3; ++set) {
        if (set == 1 ? rank == 1 : set == 2 && rank == 0) continue;  // rank 1 never submits to 1
        handles.push_back(submit(engine, in_place("x", values[set]), Intent::kCompute, set));
      }
      ++ready;
      if (!has_waiters) {
        for (int set = 0; set < 3; ++set) leave_alone(engine, set);
      }
      for (const HandleId handle : handles) {
        const Error error = caught([&] { finish(engine, handle); });
        CHECK(contains(error.what(), "rank 2 (dead) died"));
        CHECK(error.subject().ranks == std::vector<int>{2});
      }
      CHECK(
          contains(error_of([&] { submit(engine, in_place("y", values[0]), Intent::kWait, rank); }),
                   "rank 2 (dead) died"));
    });
  }
}

}  // namespace
}  // namespace hvd::test
