// Ranks that have run out of data join; the others go on without them until all have joined.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "contains.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

TEST_CASE("all join, at once and again and again") {
  for (const int cores : {1, 8}) {
    WorldOfThreads world(3, [cores](EngineConfig& config) { config.usable_cores = cores; });
    int last[3];
    world.run([&](int rank, Engine& engine) {
      for (int round = 0; round < 50; ++round) last[rank] = join(engine);
    });
    CHECK(last[0] == last[1]);
    CHECK(last[1] == last[2]);
    CHECK(last[0] >= 0);
    CHECK(last[0] < 3);
  }
}

TEST_CASE("uneven numbers of operations, named and not, then a join, again and again") {
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    std::mt19937 random(7);
    for (int round = 0; round < 20; ++round) {
      int counts[3];
      for (int& count : counts) count = static_cast<int>(random() % 12);
      for (int i = 0; i < counts[rank]; ++i) {
        const float present = static_cast<float>(std::count_if(
            std::begin(counts), std::end(counts), [i](int count) { return count > i; }));
        std::vector<float> named(i % 3 == 0 ? 100'000 : 5, 1.0F), unnamed(7, 1.0F);
        const HandleId first = submit(engine, in_place("named", named), Intent::kCompute);
        const HandleId second = submit(engine, in_place("", unnamed), Intent::kCompute);
        finish(engine, first);
        finish(engine, second);
        REQUIRE(named.back() == present);
        REQUIRE(unnamed.back() == present);
      }
      join(engine);
      std::vector<float> all(10, 1.0F);
      finish(engine, submit(engine, in_place("", all)));  // the running numbers agree
      REQUIRE(all.back() == 3.0F);
    }
  });
}

// Nothing of these needs the rank that has joined, so only the meeting keeps the others from
// running ahead of it.
TEST_CASE("operations without data do not run ahead of a rank that has joined") {
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; rank != round % 3 && i < 60; ++i) {
        std::vector<float> nothing;
        std::vector<HandleId> handles{submit(engine, barrier())};
        handles.push_back(submit(engine, in_place("empty", nothing)));
        Operation gather = in_place("rows", nothing, Kind::kAllgather);
        gather.tensors[0].out = nullptr;
        handles.push_back(submit(engine, gather));
        for (const HandleId handle : handles) finish(engine, handle);
      }
      join(engine);
      std::vector<float> values(3, 1.0F);
      finish(engine, submit(engine, in_place("", values)));
      REQUIRE(values.back() == 3.0F);
    }
  });
}

TEST_CASE("a rank that has joined brings nothing and gets nothing") {
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    if (rank != 1) {
      std::vector<float> rows(4, static_cast<float>(rank));
      Operation gather = in_place("g", rows, Kind::kAllgather);
      gather.tensors[0].out = nullptr;
      CHECK(finish(engine, submit(engine, gather)).at(0).shape == std::vector<std::int64_t>{8});
      Operation exchange = in_place("a", rows, Kind::kAlltoall);
      exchange.tensors[0].out = nullptr;
      exchange.splits = {2, 1, 1};
      const std::vector<Output> outputs = finish(engine, submit(engine, exchange));
      CHECK(outputs.at(0).shape == std::vector<std::int64_t>{rank == 0 ? 4 : 2});
      Operation give = in_place("b", rows, Kind::kBroadcast);
      give.requests[0].root = 2;
      finish(engine, submit(engine, give));
      CHECK(rows.back() == 2.0F);
    }
    join(engine);
  });
}

TEST_CASE("errors reach the ranks that take part, and the join ends well") {
  WorldOfThreads world(3);
  world.run([](int rank, Engine& engine) {
    for (int round = 0; round < 20; ++round) {
      if (rank != 2) {
        std::vector<float> bad(rank == 0 ? 4 : 5), good(4, 1.0F);
        CHECK(contains(error_of([&] { finish(engine, submit(engine, in_place("x", bad))); }),
                       "Mismatched ALLREDUCE tensor shapes"));
        Operation operation = in_place("y", good, Kind::kBroadcast);
        operation.requests[0].root = 2;
        const HandleId broadcast = submit(engine, operation);
        finish(engine, submit(engine, in_place("x", good)));
        CHECK(good.back() == 2.0F);
        CHECK(contains(error_of([&] { finish(engine, broadcast); }),
                       "BROADCAST is not supported with Join when its root has joined"));
      }
      join(engine);
    }
  });
}

TEST_CASE(
    "a rank that has joined submits nothing until all have, and may use other sets meanwhile") {
  WorldOfThreads world(2);
  world.add_set(1, {0, 1});
  world.run([](int rank, Engine& engine) {
    std::vector<float> values(4, 1.0F), other(4, 1.0F);
    const Operation joining{
        .name = {}, .requests = {float_request(Kind::kJoin, {})}, .tensors = {{}}, .splits = {}};
    HandleId handle = 0;
    if (rank == 0) {
      handle = submit(engine, joining, Intent::kCompute);
      CHECK(contains(error_of([&] { finish(engine, submit(engine, in_place("x", values))); }),
                     "allreduce 'x': this rank has joined"));
    } else {
      finish(engine, submit(engine, in_place("y", values)));
    }
    finish(engine, submit(engine, in_place("x", other), Intent::kWait, 1));
    CHECK(other.back() == 2.0F);
    if (rank == 1) handle = submit(engine, joining, Intent::kCompute);
    finish(engine, handle);
  });
}

}  // namespace
}  // namespace hvd::test
