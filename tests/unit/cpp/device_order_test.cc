// Several process sets at once on GPUs that have room for one kernel: two ranks that launch those
// of two sets in different orders wait forever.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "backend/device_buckets.h"
#include "backend/host_backend.h"
#include "data_world.h"
#include "device_world.h"

namespace hvd::test {
namespace {

// Each pair of ranks is a set, from 1 on; 0 is the world.
std::vector<int> add_pairs(DeviceWorld& world, int size, int rank) {
  std::vector<int> own{0};
  int set = 0;
  for (int high = 1; high < size; ++high) {
    for (int low = 0; low < high; ++low) {
      ++set;
      if (rank < 0) world.engines().add_set(set, {low, high});
      if (rank == low || rank == high) own.push_back(set);
    }
  }
  return own;
}

void run_at_once(Engine& engine, const DeviceRank& mine, const std::vector<int>& sets,
                 int world_size) {
  std::vector<DeviceFloats> tensors;
  std::vector<HandleId> handles;
  for (std::size_t i = 0; i < sets.size(); ++i) tensors.push_back(mine.floats({1.0F}));
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const Operation operation = on_device_in_place("x", tensors[i]);
    handles.push_back(submit(engine, mine, operation, Intent::kCompute, sets[i]));
  }
  for (const HandleId handle : handles) finish_on_device(engine, handle);
  mine.synchronize();
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const float expected = sets[i] == 0 ? static_cast<float>(world_size) : 2.0F;
    CHECK(tensors[i].values() == std::vector{expected});
  }
}

TEST_CASE("buckets of several sets are launched in one order") {
  constexpr int kSize = 4;
  for (const int streams : {1, 2}) {
    DeviceWorld world(kSize, {.streams = streams});
    add_pairs(world, kSize, -1);
    stand_in_limit_kernels(1);
    world.run([&](int rank, Engine& engine, DeviceRank& mine) {
      std::vector<int> sets = add_pairs(world, kSize, rank);
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int round = 0; round < 20; ++round) {
        std::ranges::shuffle(sets, random);
        run_at_once(engine, mine, sets, kSize);
      }
    });
  }
}

TEST_CASE("a set whose tensors travel through the host holds up no launch of another set") {
  constexpr int kSize = 3;
  DeviceWorld world(kSize, {.route = DeviceRoute::kHost});
  add_pairs(world, kSize, -1);
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    std::vector<int> sets = add_pairs(world, kSize, rank);
    if (rank == 1) std::ranges::reverse(sets);
    for (int round = 0; round < 20; ++round) run_at_once(engine, mine, sets, kSize);
  });
}

TEST_CASE("a bucket that waits for its turn says so") {
  stand_in_reset();
  stand_in_set_gpus(1);
  DevicePlane plane;
  plane.gpus = std::make_shared<GpuAccess>(CUDA_STAND_IN, std::vector<std::string>{NCCL_STAND_IN});
  bool is_turn = false;
  plane.may_launch = [&] { return is_turn; };
  DataWorld ranks(1);
  HostBackend host(*ranks.peers[0]);
  DeviceBuckets buckets(plane, host, {.rank = 0, .size = 1}, {.hosts = {{0}}}, {"rank 0"},
                        [](const std::string&) {});
  const DeviceFloats tensor(*plane.gpus->open(), 0, {1.0F});
  const Request request = float_request(Kind::kAllreduce, {1});
  std::vector<Work> works(1);
  works[0].request = &request;
  works[0].in = works[0].out = tensor.data();
  works[0].device = tensor.device();
  buckets.begin(Kind::kAllreduce, works, {});
  PeerWait blocked;
  const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
  while (!buckets.advance(blocked = {}) && !blocked.is_for_turn) REQUIRE(now_ns() < deadline);
  const PeerWait turn{.is_polled = true, .is_for_turn = true};
  CHECK(blocked == turn);
  is_turn = true;
  while (!buckets.advance(blocked = {})) REQUIRE(now_ns() < deadline);
}

}  // namespace
}  // namespace hvd::test
