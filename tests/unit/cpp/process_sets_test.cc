// Process sets work side by side: none waits for another, whichever thread makes progress.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "contains.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

WorldOfThreads::Configure with_cores(int cores) {
  return [cores](EngineConfig& config) { config.usable_cores = cores; };
}

TEST_CASE("members run collectives of their own, by their world ranks") {
  WorldOfThreads world(4);
  world.add_set(1, {1, 3});
  world.run([](int rank, Engine& engine) {
    if (rank % 2 == 0) return;
    std::vector<float> values(1000, static_cast<float>(rank));
    finish(engine, submit(engine, in_place("x", values), Intent::kWait, 1));
    CHECK(values.back() == 4.0F);
    Operation operation = in_place("y", values, Kind::kBroadcast);
    values.assign(1000, static_cast<float>(rank));
    operation.requests[0].root = 3;
    finish(engine, submit(engine, operation, Intent::kWait, 1));
    CHECK(values.back() == 3.0F);
    operation.requests[0].root = 0;
    CHECK(contains(error_of([&] { submit(engine, operation, Intent::kWait, 1); }),
                   "broadcast 'y' of process set 1: invalid root rank 0; the ranks are 1, 3"));
  });
}

TEST_CASE("one name in two sets is two tensors") {
  WorldOfThreads world(2);
  world.add_set(1, {0, 1});
  world.run([](int rank, Engine& engine) {
    std::vector<float> first(10, 1.0F), second(20, 2.0F);
    const int set = rank;  // in flight in both at once, in different orders
    const HandleId one =
        submit(engine, in_place("x", set == 0 ? first : second), Intent::kWait, set);
    const HandleId two =
        submit(engine, in_place("x", set == 0 ? second : first), Intent::kWait, 1 - set);
    finish(engine, two);
    finish(engine, one);
    CHECK(first.back() == 2.0F);
    CHECK(second.back() == 4.0F);
  });
}

// Rank 0 uses A then B, rank 1 B then C, rank 2 C then A: an engine that runs them in turn waits
// forever.
void check_cycle(int cores, std::size_t count, bool has_waiters) {
  constexpr int kSize = 3;
  WorldOfThreads world(kSize, with_cores(cores));
  for (int set = 1; set <= kSize; ++set) {
    std::vector<int> members{set - 1, (set + 1) % kSize};
    std::ranges::sort(members);
    world.add_set(set, members);
  }
  world.run([&](int rank, Engine& engine) {
    const int sets[] = {rank + 1, (rank + 1) % kSize + 1};
    std::vector<float> tensors[2];
    for (int round = 0; round < 20; ++round) {
      HandleId handles[2];
      for (int i = 0; i < 2; ++i) {
        tensors[i].assign(count, static_cast<float>(sets[i]));
        handles[i] = submit(engine, in_place("x", tensors[i]), Intent::kCompute, sets[i]);
      }
      for (int i = 0; i < 2; ++i) {
        if (!has_waiters) leave_alone(engine, sets[i]);
        finish(engine, handles[i]);
        REQUIRE(tensors[i].front() == static_cast<float>(2 * sets[i]));
        REQUIRE(tensors[i].back() == static_cast<float>(2 * sets[i]));
      }
    }
  });
}

TEST_CASE("sets that overlap in a circle do not wait for each other") {
  for (const int cores : {1, 2, 8}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{700'000}}) {
      for (const bool has_waiters : {true, false}) {
        CAPTURE(cores);
        CAPTURE(count);
        CAPTURE(has_waiters);
        check_cycle(cores, count, has_waiters);
      }
    }
  }
}

TEST_CASE("several threads of a rank wait for different sets") {
  for (const int cores : {1, 8}) {
    WorldOfThreads world(3, with_cores(cores));
    world.add_set(1, {0, 1});
    world.add_set(2, {1, 2});
    world.add_set(3, {0, 1, 2});
    world.run([](int rank, Engine& engine) {
      std::vector<std::thread> threads;
      for (int set = 0; set <= 3; ++set) {
        if ((set == 1 && rank == 2) || (set == 2 && rank == 0)) continue;
        const float size = set == 1 || set == 2 ? 2.0F : 3.0F;
        threads.emplace_back([&engine, set, size] {
          for (int round = 0; round < 40; ++round) {
            std::vector<float> values(round % 4 == 0 ? 200'000 : 10, 1.0F);
            finish(engine, submit(engine, in_place("x", values), Intent::kWait, set));
            CHECK(values.back() == size);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

// Rank 2 of set 1 is played by the test: it submits and never moves.
struct StuckSet {
  explicit StuckSet(WorldOfThreads& world) {
    world.add_set(1, {0, 1, 2});
    NegotiationConfig config;
    config.rank = 2;
    config.size = 3;
    NegotiationTable negotiation(world.part_of(1, 3), config);
    Operation operation = in_place("stuck", values[2]);
    operation.requests[0].format = LinkFormat::kExact;  // as a rank's engine decides
    SlotRef ref;
    const SharedLock lock = negotiation.lock();
    negotiation.arrive(key_of("stuck"), operation.requests, {}, signature_of(operation.requests),
                       ref);
  }

  std::vector<float> values[3]{std::vector<float>(4), std::vector<float>(4), std::vector<float>(4)};
};

// A set sleeps through nothing while another set's collective is stuck: a sleep that no rank ends
// takes 0.1 s. The median, since a loaded machine keeps single rounds waiting for longer.
void check_beside_stuck(int cores, Intent intent, bool has_waiters) {
  constexpr std::size_t kRounds = 150;
  WorldOfThreads world(3, with_cores(cores));
  StuckSet stuck(world);
  world.add_set(2, {0, 1});
  std::array<std::int64_t, kRounds> taken_ns{};
  world.run([&](int rank, Engine& engine) {
    if (rank == 2) return;
    submit(engine, in_place("stuck", stuck.values[rank]), Intent::kCompute, 1);
    // One more set is under way, so that no thread ever waits for a single counter.
    submit(engine, in_place("pending", stuck.values[rank]), Intent::kCompute);
    for (std::size_t round = 0; round < kRounds; ++round) {
      std::vector<float> values(round % 8 == 0 ? 50'000 : 10, 1.0F);
      const std::int64_t start_ns = now_ns();
      const HandleId handle = submit(engine, in_place("x", values), intent, 2);
      if (!has_waiters) leave_alone(engine, 2);
      finish(engine, handle);
      if (rank == 0) taken_ns[round] = now_ns() - start_ns;
      CHECK(values.back() == 2.0F);
    }
    CHECK(engine.pending_on(1) == 1);
  });
  std::sort(taken_ns.begin(), taken_ns.end());
  CHECK(taken_ns[kRounds / 2] < 100'000'000);
  for (int rank = 0; rank < 3; ++rank) world.engine(rank).shutdown();
}

TEST_CASE("a set goes on while another is stuck in the middle of a collective") {
  for (const int cores : {1, 2, 8}) {
    CAPTURE(cores);
    check_beside_stuck(cores, Intent::kWait, true);
    check_beside_stuck(cores, Intent::kCompute, true);
    check_beside_stuck(cores, Intent::kCompute, false);
  }
}

TEST_CASE("a set may be removed and added again with other members, and used at once") {
  WorldOfThreads world(3);
  for (int round = 0; round < 30; ++round) {
    const std::vector<int> members =
        round % 3 == 0 ? std::vector<int>{0, 2}
                       : (round % 3 == 1 ? std::vector<int>{0, 1, 2} : std::vector<int>{1});
    world.add_set(1, members);
    world.run([&](int rank, Engine& engine) {
      std::vector<float> beside(1000, 1.0F);
      const HandleId handle = submit(engine, in_place("beside", beside), Intent::kCompute);
      if (std::ranges::binary_search(members, rank)) {
        for (int i = 0; i < 3; ++i) {
          std::vector<float> values(static_cast<std::size_t>(100 * round + 1), 1.0F);
          finish(engine, submit(engine, in_place("", values), Intent::kWait, 1));
          CHECK(values.back() == static_cast<float>(members.size()));
        }
      }
      finish(engine, handle);
    });
    world.remove_set(1);
    std::vector<float> values(1);
    CHECK(error_of([&] { submit(world.engine(0), in_place("x", values), Intent::kWait, 1); }) ==
          "allreduce: process set 1 is not registered; add it on all ranks first");
  }
}

TEST_CASE("removing a set fails what is in flight on it and leaves the others alone") {
  WorldOfThreads world(2);
  world.add_set(1, {0, 1});
  std::vector<float> left(4), values[2]{std::vector<float>(4, 1.0F), std::vector<float>(4, 1.0F)};
  const HandleId handle = submit(world.engine(0), in_place("left", left), Intent::kCompute, 1);
  CHECK(world.engine(0).pending_on(1) == 1);
  world.remove_set(1);
  CHECK(world.engine(0).pending_on(1) == 0);
  CHECK(contains(error_of([&] { finish(world.engine(0), handle); }),
                 "allreduce 'left' of process set 1: the process set has been removed"));
  world.run([&](int rank, Engine& engine) {
    finish(engine, submit(engine, in_place("x", values[rank])));
    CHECK(values[rank].back() == 2.0F);
  });
}

TEST_CASE("only members of a set that exists may use it") {
  WorldOfThreads world(3);
  world.add_set(7, {0, 2});
  std::vector<float> values(4);
  const auto text = [&](int set) {
    return error_of([&] { submit(world.engine(1), in_place("x", values), Intent::kWait, set); });
  };
  CHECK(text(7) == "allreduce: rank 1 is not a member of process set 7 (ranks 0, 2)");
  for (const int set : {6, 8, -1, kMaxProcessSets, 1 << 30}) {
    CHECK(contains(text(set), "process set " + std::to_string(set) + " is not registered"));
  }
  CHECK(world.engine(1).pending_on(kMaxProcessSets) == 0);
  CHECK(error_of([&] { world.engine(0).add_process_set(kMaxProcessSets, {0}); }) ==
        "at most 1023 process sets may exist at one time");
  CHECK(error_of([&] { world.engine(0).add_process_set(0, {0}); }) != "");
}

TEST_CASE("the last of the numbers of sets works like the first") {
  WorldOfThreads world(2);
  world.add_set(kMaxProcessSets - 1, {0, 1});
  world.run([](int, Engine& engine) {
    std::vector<float> values(300'000, 1.0F);
    finish(engine, submit(engine, in_place("x", values), Intent::kWait, kMaxProcessSets - 1));
    CHECK(values.back() == 2.0F);
  });
}

}  // namespace
}  // namespace hvd::test
