// Allreduce and allgather over NCCL on two levels: the same results as on one, by other calls.
#include <doctest/doctest.h>
#include <unistd.h>

#include <functional>

#include "backend/nccl_levels.h"
#include "device_world.h"

namespace hvd::test {
namespace {

int size_of(const Hosts& hosts) {
  std::size_t count = 0;
  for (const auto& host : hosts) count += host.size();
  return static_cast<int>(count);
}

long calls(const std::string& name) { return stand_in_calls(name.c_str()); }

Operation with_op(Operation operation, ReduceOp op, double prescale = 1.0, double postscale = 1.0) {
  operation.requests[0].op = op;
  operation.requests[0].prescale = prescale;
  operation.requests[0].postscale = postscale;
  return operation;
}

// Different numbers on each rank that floats add up exactly.
std::vector<float> numbers(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11) - 4;
  }
  return values;
}

using Results = std::vector<std::vector<float>>;

void reduce_all(Results& results, Engine& engine, const DeviceRank& mine, int rank) {
  const std::vector<std::function<Operation(Operation)>> ways{
      [](Operation each) { return with_op(std::move(each), ReduceOp::kSum); },
      [](Operation each) { return with_op(std::move(each), ReduceOp::kAverage, 12.0, 0.5); },
      [](Operation each) { return with_op(std::move(each), ReduceOp::kMin); },
      [](Operation each) { return with_op(std::move(each), ReduceOp::kMax); },
      [](Operation each) { return with_op(std::move(each), ReduceOp::kProduct); }};
  for (std::size_t way = 0; way < ways.size(); ++way) {
    for (const std::size_t count : {1, 5, 12, 1000}) {
      const std::string name = std::to_string(way) + " " + std::to_string(count);
      const DeviceFloats in_place = mine.floats(numbers(rank, count));
      const DeviceFloats in = mine.floats(numbers(rank, count));
      const DeviceFloats out = mine.floats(std::vector(count, -1.0F));
      const HandleId first =
          submit(engine, mine, ways[way](on_device_in_place(name, in_place)), Intent::kCompute);
      const HandleId second =
          submit(engine, mine,
                 ways[way](on_device(name + " out", Kind::kAllreduce, in, out.data(),
                                     {static_cast<std::int64_t>(count)})));
      finish_on_device(engine, first);
      finish_on_device(engine, second);
      mine.synchronize();
      CHECK(in.values() == numbers(rank, count));
      results.push_back(in_place.values());
      results.push_back(out.values());
    }
  }
}

void gather_all(Results& results, Engine& engine, const DeviceRank& mine, int rank) {
  const std::vector<std::function<int(int)>> row_counts{
      [](int) { return 3; }, [](int each) { return each; }, [](int each) { return each % 2; }};
  for (std::size_t way = 0; way < row_counts.size(); ++way) {
    const int rows = row_counts[way](rank);
    const DeviceFloats in = mine.floats(numbers(rank, static_cast<std::size_t>(2 * rows)));
    const auto outputs =
        finish_on_device(engine, submit(engine, mine,
                                        on_device("gather " + std::to_string(way), Kind::kAllgather,
                                                  in, nullptr, {rows, 2})));
    mine.synchronize();
    results.push_back(floats_of(outputs.at(0)));
  }
}

// What every rank gets of many collectives.
std::vector<Results> results_of(const Hosts& hosts, bool is_hierarchical) {
  DeviceWorld world(size_of(hosts), {.is_hierarchical = is_hierarchical, .hosts = hosts});
  std::vector<Results> results(static_cast<std::size_t>(size_of(hosts)));
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    Results& own = results[static_cast<std::size_t>(rank)];
    reduce_all(own, engine, mine, rank);
    gather_all(own, engine, mine, rank);
  });
  return results;
}

struct Layout {
  Hosts hosts;
  bool has_levels;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{{{{0, 1}, {2, 3}}, true}, {{{0, 1, 2}, {3, 4, 5}}, true},
                                       {{{0, 2}, {1, 3}}, true}, {{{0, 1, 2, 3}}, false},
                                       {{{0}, {1}, {2}}, false}, {{{0, 1}, {2}}, false}};
  return all;
}

TEST_CASE("two levels give what one gives, wherever the ranks are") {
  for (const auto& [hosts, has_levels] : layouts()) {
    const std::vector<Results> flat = results_of(hosts, false);
    const int size = size_of(hosts);
    CHECK(calls("ncclCommInitRankConfig") == size);
    const std::vector<Results> hierarchical = results_of(hosts, true);
    CHECK(flat == hierarchical);
    CHECK(calls("ncclCommInitRankConfig") == (has_levels ? 3 * size : size));
    const std::string all = " of " + std::to_string(size);
    CHECK((calls("ncclAllReduce" + all) == 0) == has_levels);
    CHECK((calls("ncclAllGather" + all) == 0) == has_levels);
  }
}

void check_sum(DeviceWorld& world, const std::string& name, std::size_t count) {
  const int size = world.engines().size();
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats(std::vector(count, 1.0F));
    finish_on_device(engine, submit(engine, mine, on_device_in_place(name, tensor)));
    mine.synchronize();
    CHECK(tensor.values() == std::vector(count, static_cast<float>(size)));
  });
}

const Hosts kTwoOfThree{{0, 1, 2}, {3, 4, 5}};

TEST_CASE("an allreduce is a reduce-scatter, an allreduce over the hosts, an allgather") {
  DeviceWorld world(6, {.is_hierarchical = true, .hosts = kTwoOfThree});
  check_sum(world, "even", 6);
  CHECK(calls("ncclReduceScatter of 3") == 6);
  CHECK(calls("ncclAllReduce of 2") == 6);
  CHECK(calls("ncclAllGather of 3") == 6);
  CHECK(calls("ncclReduce of 3") + calls("ncclBroadcast of 3") == 0);
  check_sum(world, "uneven", 8);  // two elements are left over
  CHECK(calls("ncclReduceScatter of 3") == 12);
  CHECK(calls("ncclReduce of 3") == 6);
  CHECK(calls("ncclAllReduce of 2") == 12);  // none more
  CHECK(calls("ncclBroadcast of 3") == 6);
  check_sum(world, "small", 2);
  CHECK(calls("ncclReduceScatter of 3") == 12);
  CHECK(calls("ncclReduce of 3") == 12);
  CHECK(calls("ncclAllReduce of 2") == 14);
  CHECK(calls("ncclAllReduce of 6") == 0);
}

TEST_CASE("the steps of a bucket are as many groups, of all its tensors") {
  DeviceWorld world(4, {.is_hierarchical = true, .hosts = {{0, 1}, {2, 3}}});
  check_sum(world, "first", 4);
  const long groups = calls("ncclGroupStart");
  world.run([](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats one = mine.floats({1.0F, 2.0F});
    const DeviceFloats other = mine.floats({3.0F, 4.0F});
    Operation both = on_device_in_place("x", one);
    both.requests.push_back(both.requests.front());
    both.tensors.push_back({.in = other.data(), .out = other.data(), .device = mine.device});
    for (Request& request : both.requests) request.is_grouped = true;
    finish_on_device(engine, submit(engine, mine, both));
    mine.synchronize();
    CHECK(one.values() == std::vector{4.0F, 8.0F});
    CHECK(other.values() == std::vector{12.0F, 16.0F});
  });
  CHECK(calls("ncclGroupStart") == groups + 3 * 4);
  CHECK(calls("ncclReduceScatter of 2") == 2 * 4);  // both tensors travel as one
}

TEST_CASE("the communicators of levels come when they are wanted, for each stream") {
  DeviceWorld world(4, {.streams = 2, .is_hierarchical = true, .hosts = {{0, 1}, {2, 3}}});
  world.run([](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats({1.0F});
    finish_on_device(engine,
                     submit(engine, mine, on_device_in_place("x", tensor, Kind::kBroadcast)));
  });
  CHECK(calls("ncclCommInitRankConfig") == 2 * 4);
  for (const std::string name : {"a", "b", "c"}) check_sum(world, name, 10);
  CHECK(calls("ncclCommInitRankConfig") == 3 * 2 * 4);
  world.run([](int, Engine& engine, DeviceRank&) { engine.shutdown(); });
  CHECK(calls("ncclCommDestroy") == 3 * 2 * 4);
  CHECK(calls("ncclCommAbort") == 0);
}

TEST_CASE("a process set has levels of its own, and a joined rank its part in them") {
  DeviceWorld world(6, {.is_hierarchical = true, .hosts = kTwoOfThree});
  world.engines().add_set(1, {0, 2, 3, 5});
  world.run([](int rank, Engine& engine, DeviceRank& mine) {
    if (rank != 1 && rank != 4) {
      const DeviceFloats of_set = mine.floats({1.0F, 2.0F, 3.0F});
      finish_on_device(engine,
                       submit(engine, mine, on_device_in_place("x", of_set), Intent::kWait, 1));
      mine.synchronize();
      CHECK(of_set.values() == std::vector{4.0F, 8.0F, 12.0F});
    }
    if (rank != 4) {
      const DeviceFloats of_all = mine.floats({1.0F, 2.0F, 3.0F, 4.0F});
      finish_on_device(engine, submit(engine, mine, on_device_in_place("x", of_all)));
      mine.synchronize();
      CHECK(of_all.values() == std::vector{5.0F, 10.0F, 15.0F, 20.0F});
    }
    join(engine);
  });
  CHECK(calls("ncclReduceScatter of 2") == 4);
  CHECK(calls("ncclReduceScatter of 3") == 6);
}

TEST_CASE("where levels do not come about, one level does it") {
  DeviceWorld world(4, {.timeout_s = 5, .is_hierarchical = true, .hosts = {{0, 1}, {2, 3}}});
  stand_in_fail("ncclCommInitRankConfig", 5, 5);  // of the second of the first rank that wants two
  check_sum(world, "x", 10);
  check_sum(world, "y", 10);
  CHECK(calls("ncclAllReduce of 4") == 8);
  CHECK(calls("ncclReduceScatter of 2") == 0);
}

TEST_CASE("what keeps a set from having levels") {
  CHECK(levels_obstacle({.hosts = {{0, 1}, {2}}}) == "hosts have from 1 to 2 ranks");
  CHECK(levels_obstacle({.hosts = {{0, 1}, {2, 3}}}) == std::nullopt);
  CHECK(has_one_level({.hosts = {{0, 1, 2}}}));
  CHECK(has_one_level({.hosts = {{0}, {1}}}));
  CHECK(!has_one_level({.hosts = {{0, 1}, {2, 3}}}));
}

void wait_for_calls(const std::string& name, long count) {
  const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
  while (calls(name) < count && now_ns() < deadline) std::this_thread::yield();
  REQUIRE(calls(name) == count);
}

TEST_CASE("all ends when a rank dies while others are in the second of three steps") {
  int end[2];  // what rank 2 watches of rank 3
  REQUIRE(pipe(end) == 0);
  const auto watched = [&](int rank) {
    std::vector<WatchedProcess> processes;
    if (rank == 2) processes.push_back({.rank = 3, .pidfd = end[0], .pid = 0});
    return processes;
  };
  {
    DeviceWorld world(4, {.is_hierarchical = true, .hosts = {{0, 1}, {2, 3}}, .watched = watched});
    check_sum(world, "x", 10);
    std::vector<DeviceFloats> tensors;
    for (int rank = 0; rank < 4; ++rank) tensors.push_back(world.rank(rank).floats({1.0F, 1.0F}));
    BusyStream busy(
        world.rank(3));  // so the second host does not come to the end of its first step
    world.run([&](int rank, Engine& engine, DeviceRank& mine) {
      const DeviceFloats& own = tensors[static_cast<std::size_t>(rank)];
      finish_on_device(engine, submit(engine, mine, on_device_in_place("y", own)));
    });
    wait_for_calls("ncclAllReduce of 2 in its stream", 4 + 2);  // the first host
    close(end[1]);
    for (const int rank : {0, 1, 2}) {
      CHECK(error_of([&] { world.engines().engine(rank).confirm(kPatience); }) != "");
      world.rank(rank).synchronize();
    }
    CHECK(calls("ncclCommAbort") >= 3 * 3);  // rank 3 may have heard of it, too
    busy.release();
    world.rank(3).synchronize();
  }
  DeviceWorld next(4, {.is_hierarchical = true, .hosts = {{0, 1}, {2, 3}}});
  check_sum(next, "x", 10);
  CHECK(calls("ncclAllReduce of 2") == 4);
}

TEST_CASE("sets that wait for each other's abort end all the same") {
  int end[2];
  REQUIRE(pipe(end) == 0);
  DeviceWorld world(2, {.watched = [&](int rank) {
                      std::vector<WatchedProcess> processes;
                      if (rank == 0) processes.push_back({.rank = 1, .pidfd = end[0], .pid = 0});
                      return processes;
                    }});
  world.engines().add_set(1, {0, 1});
  std::vector<DeviceFloats> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(world.rank(i / 2).floats({1.0F}));
  BusyStream busy(world.rank(1));
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    std::vector<HandleId> handles;
    for (const int set : {0, 1}) {
      const DeviceFloats& own = tensors[static_cast<std::size_t>(2 * rank + set)];
      handles.push_back(submit(engine, mine, on_device_in_place("x", own), Intent::kCompute, set));
    }
    for (const HandleId handle : handles) finish_on_device(engine, handle);
  });
  wait_for_calls("ncclAllReduce of 2 in its stream", 2);  // both of rank 0
  close(end[1]);
  world.rank(0).synchronize();
  CHECK(error_of([&] { world.engines().engine(0).confirm(kPatience); }) != "");
  busy.release();
  world.rank(1).synchronize();
}

}  // namespace
}  // namespace hvd::test
