// Parameters that change while ranks work, each at its own pace.
#include "core/tuning.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cuts.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

constexpr std::size_t kRounds = 60;

Tuning tuning(std::size_t round) {
  const std::uint64_t threshold = round % 3 == 0 ? 0 : std::uint64_t{1} << (10 + 3 * (round % 6));
  return {.fusion_threshold_bytes = threshold,
          .bucket = {.cycle_time_us = static_cast<std::uint32_t>(round % 2 * 20),
                     .cut = cut_of(round)}};
}

// Values whose sum depends on the order of summation.
std::vector<float> values(int rank, std::size_t count) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(rank) * 131 + 1)) *
                static_cast<float>(1 << (i + static_cast<std::size_t>(rank)) % 20);
  }
  return result;
}

// What a rank gets in every round, with two rounds under way at a time.
std::vector<std::vector<float>> results_of(int rank, Engine& engine, bool is_tuned) {
  const std::vector<std::size_t> counts{3, 300'001, 20'000, 1, 9000, 150'000};
  std::vector<std::vector<float>> tensors;
  std::vector<HandleId> handles;
  for (std::size_t round = 0; round < kRounds; ++round) {
    tensors.push_back(values(rank, counts[round % counts.size()]));
  }
  for (std::size_t round = 0; round < kRounds; ++round) {
    if (rank == 0 && is_tuned) engine.tune(tuning(round));
    handles.push_back(submit(engine, in_place("t" + std::to_string(round % 7), tensors[round]),
                             round % 2 == 0 ? Intent::kMore : Intent::kWait));
    if (round >= 2) finish(engine, handles[round - 2]);
  }
  finish(engine, handles[kRounds - 2]);
  finish(engine, handles[kRounds - 1]);
  return tensors;
}

TEST_CASE("tuning: results are the same, bit by bit, on all ranks and whatever changes") {
  for (const int size : {2, 3, 4}) {
    WorldOfThreads world(size);
    std::vector<std::vector<std::vector<float>>> plain(static_cast<std::size_t>(size));
    auto tuned = plain;
    world.run([&](int rank, Engine& engine) {
      plain[static_cast<std::size_t>(rank)] = results_of(rank, engine, false);
      tuned[static_cast<std::size_t>(rank)] = results_of(rank, engine, true);
    });
    for (int rank = 0; rank < size; ++rank) {
      CHECK(plain[static_cast<std::size_t>(rank)] == plain[0]);
      CHECK(tuned[static_cast<std::size_t>(rank)] == plain[0]);
    }
  }
}

TEST_CASE("tuning: holds for buckets that are cut afterwards, for all ranks") {
  WorldOfThreads world(2);
  for (const std::uint64_t threshold : {std::uint64_t{0}, std::uint64_t{1} << 20}) {
    world.run([&](int rank, Engine& engine) {
      const std::uint64_t before = engine.counters().buckets.get();
      if (rank == 0) engine.tune({.fusion_threshold_bytes = threshold, .bucket = {}});
      finish(engine, submit(engine, barrier()));
      std::vector<std::vector<float>> tensors(5, std::vector<float>(10));
      std::vector<Operation> all;
      for (std::size_t i = 0; i < 5; ++i)
        all.push_back(in_place("t" + std::to_string(i), tensors[i]));
      finish(engine, submit_all(engine, all));
      CHECK(engine.counters().buckets.get() - before == 1 + (threshold == 0 ? 5 : 1));
    });
  }
}

TEST_CASE("tuning: rank 0 alone tunes, and only what can be") {
  WorldOfThreads world(2);
  CHECK(error_of([&] { world.engine(1).tune({}); }) == "only rank 0 can tune");
  Tuning wrong;
  wrong.bucket.cut.block_kib = 32;
  CHECK(error_of([&] { world.engine(0).tune(wrong); }) ==
        "a block of an allreduce has 64 to 8192 KiB, not 32");
}

}  // namespace
}  // namespace hvd::test
