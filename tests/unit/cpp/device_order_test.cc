// Several process sets at once on GPUs that have room for one kernel: two ranks that launch those
// of two sets in different orders wait forever.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

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

}  // namespace
}  // namespace hvd::test
