// The data plane alone: collectives stepped by hand, several ranks on one thread, in any order.
#include "collective/allreduce.h"

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "data_world.h"

namespace hvd {
namespace {

using test::DataWorld;
using test::run_all;

ReduceSpec float_sum() { return {.dtype = Dtype::kFloat32, .op = ReduceOp::kSum}; }

View view_of(std::vector<float>& values) {
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  return {.in = bytes, .out = bytes, .size_bytes = 4 * values.size(), .spec = float_sum()};
}

TEST_CASE("small streams take one step, larger ones several blocks") {
  const std::size_t cell = staging_sizes(2).staging_cell_bytes;
  CHECK(plan_allreduce(64, 2, cell).one_step);
  CHECK(plan_allreduce(64, 2, cell).blocks == 1);
  CHECK(plan_allreduce(0, 2, cell).blocks == 0);
  CHECK(plan_allreduce(1 << 20, 1, cell).blocks == 0);
  const AllreducePlan large = plan_allreduce(64 << 20, 2, cell);
  CHECK(!large.one_step);
  CHECK(large.block_bytes == kBlockBytes);
  CHECK(large.blocks == (64 << 20) / kBlockBytes);
  for (const int size : {2, 3, 4, 7, 64}) {
    const AllreducePlan plan = plan_allreduce(100'000, size, cell);
    CHECK(plan.block_bytes % kViewAlignment == 0);
    CHECK(plan.block_bytes * plan.blocks >= 100'000);
    CHECK(plan.block_bytes * (plan.blocks - 1) < 100'000);
    CHECK(plan.block_bytes / static_cast<std::size_t>(size) + kViewAlignment <=
          staging_sizes(size).result_cell_bytes);
  }
}

TEST_CASE("allreduce sums bucket after bucket, in any interleaving of the ranks") {
  std::mt19937 random(7);
  for (const int size : {1, 2, 3, 5}) {
    DataWorld world(size);
    BlockNumber block = (BlockNumber{1} << 32) - 20;  // the counters wrap in the middle of the test
    for (auto& peers : world.peers) {
      for (SharedWord& counter : peers->own().counters) {
        counter.store(static_cast<std::uint32_t>(block));
      }
    }
    for (const std::size_t count : {1, 3, 5000, 40'000, 700'000, 2, 100'003}) {
      CAPTURE(size);
      CAPTURE(count);
      std::vector<std::vector<float>> first(size), second(size);
      std::vector<ViewList> views(size);
      std::vector<std::unique_ptr<Allreduce>> allreduces;
      std::vector<Algorithm*> algorithms;
      std::uint32_t blocks = 0;
      for (int rank = 0; rank < size; ++rank) {
        first[rank].assign(count, static_cast<float>(rank + 1));
        second[rank].resize(count / 2);
        for (std::size_t i = 0; i < second[rank].size(); ++i) {
          second[rank][i] = static_cast<float>(i % 1000) + static_cast<float>(rank);
        }
        views[rank].append(view_of(first[rank]));
        views[rank].append(view_of(second[rank]));
        allreduces.push_back(std::make_unique<Allreduce>(*world.peers[rank]));
        blocks = allreduces.back()->begin(views[rank], block);
        algorithms.push_back(allreduces.back().get());
      }
      run_all(world, algorithms, random);
      block += blocks;
      const float ranks = static_cast<float>(size);
      for (int rank = 0; rank < size; ++rank) {
        for (const float value : first[rank]) REQUIRE(value == ranks * (ranks + 1) / 2);
        for (std::size_t i = 0; i < second[rank].size(); ++i) {
          REQUIRE(second[rank][i] ==
                  ranks * static_cast<float>(i % 1000) + ranks * (ranks - 1) / 2);
        }
      }
    }
  }
}

TEST_CASE(
    "blocks that may be in use at one time never share a cell, not even where counters wrap") {
  DataWorld world(2);
  const BlockNumber wrap = BlockNumber{1} << 32;
  for (BlockNumber block = wrap - 5; block < wrap + 5; ++block) {
    for (BlockNumber later = block + 1; later < block + kCells; ++later) {
      CHECK(world.peers[0]->staging_cell(0, block) != world.peers[0]->staging_cell(0, later));
      CHECK(world.peers[0]->result_cell(0, block) != world.peers[0]->result_cell(0, later));
    }
  }
}

TEST_CASE("one step and two steps give the same bits") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  DataWorld world(3);
  // The same values alone (one step) and in front of a large tensor (two steps).
  std::vector<std::vector<float>> alone(3), together(3), filler(3, std::vector<float>(500'000));
  for (int rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 100; ++i) alone[rank].push_back(normal(random));
    together[rank] = alone[rank];
  }
  BlockNumber block = 0;
  for (const bool is_large : {false, true}) {
    std::vector<ViewList> views(3);
    std::vector<std::unique_ptr<Allreduce>> allreduces;
    std::vector<Algorithm*> algorithms;
    std::uint32_t blocks = 0;
    for (int rank = 0; rank < 3; ++rank) {
      views[rank].append(view_of(is_large ? together[rank] : alone[rank]));
      if (is_large) views[rank].append(view_of(filler[rank]));
      allreduces.push_back(std::make_unique<Allreduce>(*world.peers[rank]));
      blocks = allreduces.back()->begin(views[rank], block);
      algorithms.push_back(allreduces.back().get());
    }
    run_all(world, algorithms, random);
    block += blocks;
  }
  CHECK(together[0] == alone[0]);
  CHECK(together[1] == alone[0]);
  CHECK(together[2] == alone[0]);
}

}  // namespace
}  // namespace hvd
