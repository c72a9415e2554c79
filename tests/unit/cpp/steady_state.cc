// Training steps of two ranks that one thread runs in turns, so that every run executes the same
// instructions: instruction_count_test.py counts them. Arguments: steps, tensors, floats of each.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "world_of_threads.h"

namespace {

constexpr int kRanks = 2;

struct Rank {
  std::vector<std::vector<float>> gradients;
  std::vector<hvd::test::Operation> operations;
  std::vector<hvd::HandleId> handles;

  Rank(int tensors, std::size_t floats)
      : gradients(static_cast<std::size_t>(tensors), std::vector<float>(floats, 1.0f)) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      operations.push_back(hvd::test::in_place("gradient." + std::to_string(i), gradients[i]));
    }
  }
};

void step(hvd::test::WorldOfThreads& world, std::vector<Rank>& ranks) {
  for (int i = 0; i < kRanks; ++i) {
    Rank& rank = ranks[static_cast<std::size_t>(i)];
    rank.handles.clear();
    for (const hvd::test::Operation& operation : rank.operations) {
      rank.handles.push_back(hvd::test::submit(world.engine(i), operation));
    }
  }
  for (std::size_t done = 0; done < ranks[0].handles.size();) {
    for (int i = 1; i < kRanks; ++i) {
      world.engine(i).poll(ranks[static_cast<std::size_t>(i)].handles[done]);
    }
    if (!world.engine(0).poll(ranks[0].handles[done])) continue;
    ++done;
  }
  for (int i = 0; i < kRanks; ++i) {
    for (const hvd::HandleId handle : ranks[static_cast<std::size_t>(i)].handles) {
      hvd::test::finish(world.engine(i), handle);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) {
    std::fprintf(stderr, "usage: steady_state STEPS TENSORS FLOATS\n");
    return 2;
  }
  hvd::test::WorldOfThreads world(kRanks);
  std::vector<Rank> ranks;
  for (int i = 0; i < kRanks; ++i) {
    ranks.emplace_back(std::atoi(words[2]), static_cast<std::size_t>(std::atoi(words[3])));
  }
  for (int i = 0; i < std::atoi(words[1]); ++i) step(world, ranks);
}
