// The data plane alone: N ranks that share a region, without engines.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "collective/algorithm.h"
#include "transport/shared_space.h"

namespace hvd::test {

struct DataWorld {
  // Block numbers start at `first_block`.
  explicit DataWorld(int size, BlockNumber first_block = 0)
      : region(Region::allocate(Peers::region_bytes(size))) {
    for (int rank = 0; rank < size; ++rank) {
      peers.push_back(std::make_unique<Peers>(region->data(), rank, size));
      for (SharedWord& counter : peers.back()->own().counters) {
        counter.store(static_cast<std::uint32_t>(first_block));
      }
    }
  }
  int size() const { return static_cast<int>(peers.size()); }

  std::shared_ptr<Region> region;
  std::vector<std::unique_ptr<Peers>> peers;
};

// Steps the ranks in random order until all are done: whatever the order, nothing may be lost.
// `Resumable` has advance() of Algorithm.
template <class Resumable>
void run_all(DataWorld& world, const std::vector<Resumable*>& resumables, std::mt19937& random) {
  std::vector<bool> done(world.peers.size(), false);
  std::size_t left = world.peers.size();
  int idle_steps = 0;
  while (left != 0) {
    const std::size_t rank = random() % world.peers.size();
    PeerWait blocked;
    if (done[rank]) continue;
    if (resumables[rank]->advance(blocked)) {
      done[rank] = true;
      --left;
      idle_steps = 0;
    } else {
      REQUIRE(!world.peers[rank]->reached(blocked));
      REQUIRE(++idle_steps < 10000);
    }
  }
}

}  // namespace hvd::test
