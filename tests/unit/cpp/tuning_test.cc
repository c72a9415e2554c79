// Parameters that change while ranks work, each at its own pace.
#include "core/tuning.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cuts.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

constexpr std::size_t kRounds = 60;

Tuning tuning(std::size_t round) {
  const std::uint64_t threshold = round % 3 == 0 ? 0 : std::uint64_t{1} << (10 + 3 * (round % 6));
  return {.fusion_threshold_bytes = threshold,
          .bucket = {.cycle_time_us = static_cast<std::uint32_t>(round % 2 * 20),
                     .cut = cut_of(round),
                     .link_format = LinkFormat::kExact}};
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
  Tuning open;
  open.bucket.link_format = LinkFormat::kTuned;
  CHECK(error_of([&] { world.engine(0).tune(open); }) ==
        "a bucket has no or a low-bit compression, not 'tuned'");
}

constexpr LinkFormat kFormats[] = {LinkFormat::kExact, LinkFormat::kInt8, LinkFormat::kFp8,
                                   LinkFormat::kExact, LinkFormat::kInt4, LinkFormat::kMxfp8};
// Of the sum over two hosts of two ranks, whose elements are at most 2 on each: each host's sum and
// the sum over the hosts are coded once, with half a step of error. Powers of two as scales keep
// small whole numbers.
constexpr float kMostErrors[] = {0, 0.07F, 1.1F, 0, 1.2F, 0};

class FormatsWorld : public WorldOfThreads {
 public:
  explicit FormatsWorld(LinkFormat as_set)
      : WorldOfThreads(
            4, [as_set](EngineConfig& config) { config.formats = {.as_set = as_set}; },
            [](int) { return std::vector<WatchedProcess>{}; }, Hosts{{0, 1}, {2, 3}}) {}
};

// Whole numbers, so that exact sums are equal however they are added.
std::vector<float> whole_values(int rank, std::size_t count) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = static_cast<float>((i * 3 + static_cast<std::size_t>(rank)) % 5) - 2;
  }
  return result;
}

// What a rank gets with each format in turn: a large tensor, an exact one, and one of a group.
std::vector<std::vector<float>> in_all_formats(int rank, Engine& engine, std::size_t rounds) {
  std::vector<std::vector<float>> results;
  for (std::size_t round = 0; round < rounds; ++round) {
    finish(engine, submit(engine, barrier()));  // the buckets before are cut
    Tuning tuning;
    tuning.bucket.link_format = kFormats[round % std::size(kFormats)];
    if (rank == 0) engine.tune(tuning);
    finish(engine, submit(engine, barrier()));
    std::vector<float> large = whole_values(rank, 30'000);
    std::vector<float> small = whole_values(rank, 1023);
    std::vector<float> asked = whole_values(rank, 5000);
    std::vector<Operation> all{in_place("large", large), in_place("small", small),
                               in_place("asked", asked)};
    all[2].requests[0].format = LinkFormat::kInt8;
    finish(engine, submit_all(engine, all));
    results.insert(results.end(), {large, small, asked});
  }
  return results;
}

TEST_CASE("tuning: formats between hosts change at the same operation on all ranks") {
  if (has_data_plane()) return;
  constexpr std::size_t kTurns = 3 * std::size(kFormats);
  FormatsWorld world(LinkFormat::kTuned);
  std::vector<std::vector<std::vector<float>>> found(4);
  world.run([&](int rank, Engine& engine) {
    found[static_cast<std::size_t>(rank)] = in_all_formats(rank, engine, kTurns);
  });
  for (const auto& of_rank : found) CHECK(of_rank == found[0]);
  std::vector<float> exact(30'000);
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<float> own = whole_values(rank, exact.size());
    for (std::size_t i = 0; i < own.size(); ++i) exact[i] += own[i];
  }
  for (std::size_t round = 0; round < kTurns; ++round) {
    CAPTURE(round);
    const float most = kMostErrors[round % std::size(kFormats)];
    float error = 0;
    const std::vector<float>& large = found[0][3 * round];
    for (std::size_t i = 0; i < large.size(); ++i) {
      error = std::max(error, std::fabs(large[i] - exact[i]));
    }
    CHECK(error <= most);
    CHECK((error == 0) == (most == 0));
    CHECK(std::equal(exact.begin(), exact.begin() + 1023, found[0][3 * round + 1].begin()));
    CHECK(found[0][3 * round + 2] == found[0][2]);  // is not tuned
  }
}

TEST_CASE("tuning: formats change only tensors that allow it, in the world only") {
  if (has_data_plane()) return;
  FormatsWorld world(LinkFormat::kExact);
  world.run([&](int rank, Engine& engine) {
    const auto results = in_all_formats(rank, engine, 2);
    CHECK(results[0] == results[3]);
  });
  FormatsWorld open(LinkFormat::kTuned);
  open.add_set(1, {0, 1, 2, 3});
  open.run([&](int rank, Engine& engine) {
    const auto results = in_all_formats(rank, engine, 2);  // ends with int8
    CHECK(results[0] != results[3]);
    std::vector<float> large = whole_values(rank, 30'000);
    finish(engine, submit(engine, in_place("large", large), Intent::kWait, 1));
    CHECK(large == results[0]);
  });
}

}  // namespace
}  // namespace hvd::test
