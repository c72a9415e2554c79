#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "world_of_threads.h"

namespace hvd::test {
namespace {

const auto debug = [](EngineConfig& config) {
  config.is_debug = true;
  config.debug_interval = 2;
};

TEST_CASE("every rank hears whose input is not finite, and goes on with other tensors") {
  WorldOfThreads world(3, debug);
  world.run([](int rank, Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(10, 1.0F);
      if (rank == 1 && round == 1) values[7] = std::nanf("");
      const std::string text =
          error_of([&] { finish(engine, submit(engine, in_place("x", values))); });
      CHECK(text ==
            (round == 1
                 ? "allreduce 'x': rank 1 has nan at [7] (found by HOROVOD_DEBUG_COLLECTIVES)"
                 : ""));
    }
  });
}

TEST_CASE("a result that is not finite is an error on every rank") {
  WorldOfThreads world(2, debug);
  world.run([](int, Engine& engine) {
    std::vector<float> large(5, 3e38F);
    const std::string text =
        error_of([&] { finish(engine, submit(engine, in_place("x", large))); });
    CHECK(text ==
          "allreduce 'x': all ranks gave finite numbers, but the result has inf at [0] (found by "
          "HOROVOD_DEBUG_COLLECTIVES)");
  });
}

TEST_CASE("of a group, the tensor is named") {
  WorldOfThreads world(2, debug);
  world.run([](int rank, Engine& engine) {
    std::vector<float> values(3, 1.0F);
    std::vector<float> bad(3, rank == 1 ? std::nanf("") : 1.0F);
    Operation both = in_place("x", values);
    both.requests.push_back(both.requests.front());
    both.tensors.push_back(in_place("y", bad).tensors.front());
    for (Request& request : both.requests) request.is_grouped = true;
    const std::string text = error_of([&] { finish(engine, submit(engine, both)); });
    CHECK_MESSAGE(text.ends_with("rank 1 has in tensor 2 of 2 nan at [0] (found by "
                                 "HOROVOD_DEBUG_COLLECTIVES)"),
                  text);
  });
}

TEST_CASE("equal results are compared without notice, whichever thread makes progress") {
  for (const int size : {1, 2, 4}) {
    WorldOfThreads world(size, debug);
    world.run([size](int rank, Engine& engine) {
      for (int round = 0; round < 40; ++round) {
        std::vector<float> a(100, 1.0F);
        std::vector<float> b(100'000, static_cast<float>(rank));
        const Intent intent = round % 2 == 0 ? Intent::kWait : Intent::kCompute;
        const HandleId first = submit(engine, in_place("a", a), intent);
        const HandleId second = submit(engine, in_place("b", b, Kind::kBroadcast), intent);
        finish(engine, second);
        finish(engine, first);
        REQUIRE(a.back() == static_cast<float>(size));
      }
      if (rank != size - 1) {
        std::vector<float> alone(10, 1.0F);
        finish(engine, submit(engine, in_place("alone", alone)));
      }
      join(engine);
      std::vector<float> together(10, 1.0F);
      finish(engine, submit(engine, in_place("together", together)));
      CHECK(together.back() == static_cast<float>(size));
    });
  }
}

TEST_CASE("a process set can be removed while its results are compared") {
  WorldOfThreads world(3, [](EngineConfig& config) {
    config.is_debug = true;
    config.debug_interval = 1;
  });
  for (int round = 0; round < 5; ++round) {
    world.add_set(1, {0, 2});
    world.run([](int rank, Engine& engine) {
      if (rank == 1) return;
      std::vector<float> values(10, 1.0F);
      finish(engine, submit(engine, in_place("x", values), Intent::kWait, 1));
      CHECK(engine.pending_on(1) == 0);
    });
    world.remove_set(1);
  }
}

TEST_CASE("a result that differs on one rank ends the world and names the rank") {
  WorldOfThreads world(3, [](EngineConfig& config) {
    config.is_debug = true;
    config.debug_interval = 1;
  });
  world.run([](int rank, Engine& engine) {
    // Two results in one memory, on this rank alone: one of them is not what the others have. They
    // are a group, which is looked at when both are there.
    std::vector<float> given[] = {std::vector<float>(10, 1.0F), std::vector<float>(10, 2.0F)};
    std::vector<float> taken[] = {std::vector<float>(10), std::vector<float>(10)};
    Operation both = in_place("a", given[0]);
    both.requests.push_back(both.requests.front());
    both.tensors.push_back(in_place("b", given[1]).tensors.front());
    for (std::size_t i = 0; i < 2; ++i) {
      auto& memory = taken[rank == 2 ? 0 : i];
      both.requests[i].is_grouped = true;
      both.tensors[i].out = reinterpret_cast<std::byte*>(memory.data());
    }
    finish(engine, submit(engine, both));
    std::string text;
    const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
    while (text.empty() && now_ns() < deadline) {
      std::vector<float> values(10, 1.0F);
      text = error_of([&] { finish(engine, submit(engine, in_place("next", values))); });
    }
    CHECK_MESSAGE(text.starts_with("allreduce 'next': grouped_allreduce 'a'"), text);
    CHECK(text.ends_with(
        "rank 2 has another result than ranks 0, 1 (found by HOROVOD_DEBUG_COLLECTIVES)"));
  });
}

}  // namespace
}  // namespace hvd::test
