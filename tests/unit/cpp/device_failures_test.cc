// What goes wrong on GPUs and with NCCL: another way where there is one, else an error with the
// library's own text, and no wait without an end.
#include <doctest/doctest.h>
#include <unistd.h>

#include <thread>

#include "caught_errors.h"
#include "contains.h"
#include "device_world.h"

namespace hvd::test {
namespace {

// An allreduce on every rank, which goes well.
void check_allreduce(DeviceWorld& world, const std::string& name = "x") {
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats({1.0F});
    finish_on_device(engine, submit(engine, mine, on_device_in_place(name, tensor)));
    mine.synchronize();
    CHECK(tensor.values() == std::vector{static_cast<float>(world.engines().size())});
  });
}

TEST_CASE("without NCCL, or where it does not come about, the host carries GPU tensors") {
  DeviceWorld without(2, {.nccl = {}});
  check_allreduce(without);
  DeviceWorld refused(2, {.timeout_s = 0.05});
  stand_in_fail("ncclCommInitRankConfig", 5, 1);  // on the rank that comes second
  check_allreduce(refused);
  CHECK(stand_in_calls("ncclCommAbort") == 1);  // of the other one
  DeviceWorld slow(2, {.timeout_s = 0.02});
  stand_in_fail("ncclCommGetAsyncError", 7, 0);  // in progress for ever
  check_allreduce(slow);
  CHECK(stand_in_calls("ncclCommAbort") == 2);
  CHECK(stand_in_calls("ncclAllReduce") == 0);
}

TEST_CASE("what goes another way than people may think is said once") {
  const CaughtErrors errors;
  DeviceWorld world(
      3, {.is_hierarchical = true, .hosts = {{0, 1}, {2}}, .log_level = LogLevel::kWarning});
  for (const char* name : {"x", "y"}) check_allreduce(world, name);
  CHECK(errors.count("all ranks at once: hosts have from 1 to 2 ranks\n") == 1);
}

TEST_CASE("who insists on NCCL gets it or an error that says why not") {
  DeviceWorld world(2, {.has_own_gpus = false, .route = DeviceRoute::kNccl});
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats({1.0F});
    const std::string text = error_of(
        [&] { finish_on_device(engine, submit(engine, mine, on_device_in_place("x", tensor))); });
    CHECK_MESSAGE(
        (contains(text, "rank 0 and rank 1 share one GPU") || contains(text, "has given up")),
        text);
  });
}

TEST_CASE("an error of NCCL ends the world, with NCCL's text") {
  DeviceWorld world(2);
  check_allreduce(world);
  stand_in_fail("ncclAllReduce", 3, 0);
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats({1.0F});
    const std::string text = error_of(
        [&] { finish_on_device(engine, submit(engine, mine, on_device_in_place("y", tensor))); });
    const std::string own = "rank " + std::to_string(engine.world().config.rank) +
                            ": ncclAllReduce: unhandled system error (said by the stand-in)";
    CHECK_MESSAGE((contains(text, own) || contains(text, "has given up")), text);
  });
  DeviceWorld next(2);
  check_allreduce(next);
}

TEST_CASE("an error that NCCL finds later is found by who confirms") {
  DeviceWorld world(2);
  check_allreduce(world);
  BusyStream busy(world.rank(0));
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats({1.0F});
    finish_on_device(engine, submit(engine, mine, on_device_in_place("y", tensor)));
  });
  stand_in_fail("ncclCommGetAsyncError", 6, 0);
  CHECK(contains(error_of([&] { world.engines().engine(0).confirm(kPatience); }),
                 "said by the stand-in"));
  busy.release();
}

TEST_CASE("a CUDA error has CUDA's text") {
  DeviceWorld world(1, {.route = DeviceRoute::kHost});
  const DeviceRank& mine = world.rank(0);
  const DeviceFloats tensor = mine.floats({1.0F});
  stand_in_fail("cuMemHostAlloc", 2, 0);
  const std::string text = error_of([&] {
    Engine& engine = world.engines().engine(0);
    finish_on_device(engine, submit(engine, mine, on_device_in_place("allreduce.x", tensor)));
  });
  CHECK(contains(text, "allreduce 'x': rank 0: cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY"));
}

TEST_CASE("a collective on the GPU ends when another rank has given up") {
  DeviceWorld world(2);
  check_allreduce(world);
  const DeviceFloats first = world.rank(0).floats({1.0F});
  const DeviceFloats second = world.rank(1).floats({1.0F});
  BusyStream busy(world.rank(1));  // whose part never comes
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    finish_on_device(engine,
                     submit(engine, mine, on_device_in_place("y", rank == 0 ? first : second)));
  });
  stand_in_fail("ncclGroupStart", 3, 0);
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats({1.0F});
    CHECK(error_of([&] {
            finish_on_device(engine, submit(engine, mine, on_device_in_place("z", tensor)));
          }) != "");
  });
  world.rank(0).synchronize();  // its collective was waiting for the other rank
  busy.release();
  world.rank(1).synchronize();
}

TEST_CASE("a collective on the GPU ends when another rank dies, though nobody waits") {
  int end[2];  // what rank 0 watches of rank 1
  REQUIRE(pipe(end) == 0);
  DeviceWorld world(2, {.watched = [&](int rank) {
                      std::vector<WatchedProcess> processes;
                      if (rank == 0) processes.push_back({.rank = 1, .pidfd = end[0], .pid = 0});
                      return processes;
                    }});
  check_allreduce(world);
  const DeviceFloats first = world.rank(0).floats({1.0F});
  const DeviceFloats second = world.rank(1).floats({1.0F});
  BusyStream busy(world.rank(1));
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    finish_on_device(engine,
                     submit(engine, mine, on_device_in_place("y", rank == 0 ? first : second)));
  });
  close(end[1]);
  world.rank(0).synchronize();
  CHECK(contains(error_of([&] { world.engines().engine(0).confirm(kPatience); }), "rank 1 died"));
  busy.release();
  world.rank(1).synchronize();
}

TEST_CASE("a rank that NCCL misses first is named when it is known to be dead") {
  int end[2];  // what rank 0 watches of rank 1
  REQUIRE(pipe(end) == 0);
  DeviceWorld world(2, {.watched = [&](int rank) {
                      std::vector<WatchedProcess> processes;
                      if (rank == 0) processes.push_back({.rank = 1, .pidfd = end[0], .pid = 0});
                      return processes;
                    }});
  check_allreduce(world);
  BusyStream busy(world.rank(0));
  world.run([&](int, Engine& engine, DeviceRank& mine) {
    const DeviceFloats tensor = mine.floats({1.0F});
    finish_on_device(engine, submit(engine, mine, on_device_in_place("y", tensor)));
  });
  const long calls = stand_in_calls("ncclCommGetAsyncError");
  stand_in_fail("ncclCommGetAsyncError", 6, 0);
  std::thread death([&] {
    while (stand_in_calls("ncclCommGetAsyncError") == calls) std::this_thread::yield();
    close(end[1]);
  });
  const std::string text = error_of([&] { world.engines().engine(0).confirm(kPatience); });
  CHECK_MESSAGE(contains(text, "rank 1 died"), text);
  death.join();
  busy.release();
}

TEST_CASE("host memory on one rank and a GPU on another is a mismatch") {
  DeviceWorld world(2);
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    const DeviceFloats on_gpu = mine.floats({1.0F});
    std::vector<float> on_host{1.0F};
    const std::string text = error_of([&] {
      if (rank == 0) finish(engine, submit(engine, in_place("allreduce.x", on_host)));
      if (rank == 1)
        finish_on_device(engine, submit(engine, mine, on_device_in_place("allreduce.x", on_gpu)));
    });
    CHECK_MESSAGE(contains(text, "allreduce 'x': Mismatched ALLREDUCE CPU/GPU device selection"),
                  text);
    CHECK(contains(text, "sent GPU memory"));
  });
  check_allreduce(world, "y");
}

TEST_CASE("a group is in one kind of memory") {
  DeviceWorld world(1);
  const DeviceRank& mine = world.rank(0);
  const DeviceFloats on_gpu = mine.floats({1.0F});
  std::vector<float> on_host{1.0F};
  Operation both = on_device_in_place("x", on_gpu);
  both.requests.push_back(both.requests.front());
  both.tensors.push_back(in_place("x", on_host).tensors.front());
  CHECK(contains(error_of([&] { submit(world.engines().engine(0), mine, both); }),
                 "all in host memory or all on GPUs"));
}

TEST_CASE("a rank that leaves ends its part together with the others") {
  DeviceWorld world(2);
  check_allreduce(world);
  world.run([&](int, Engine& engine, DeviceRank&) { engine.shutdown(); });
  CHECK(stand_in_calls("ncclCommDestroy") == 2);
  CHECK(stand_in_calls("ncclCommAbort") == 0);
}

}  // namespace
}  // namespace hvd::test
