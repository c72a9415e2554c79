#include "trace/clock_alignment.h"

#include <doctest/doctest.h>

#include <random>

#include "control/request.h"
#include "trace/trace_chunk.h"

namespace hvd {
namespace {

constexpr std::int64_t kAhead = 3'600'000'000'000;

class TwoClocks {
 public:
  void add(bool is_other, EventKind kind, std::int64_t true_ns, std::uint32_t subject,
           std::uint64_t value = 0, Kind operation = Kind::kAllreduce) {
    alignment_.add(is_other, is_other ? 1 : 0,
                   {.time_ns = true_ns + (is_other ? kAhead : 0),
                    .kind = kind,
                    .subject = subject,
                    .value = value},
                   static_cast<int>(operation));
  }
  // One bucket: both submit, both start 30 us after the later one, both are done 50 us later.
  void run(std::uint32_t bucket, std::int64_t here_ns, std::int64_t there_ns,
           Kind operation = Kind::kAllreduce) {
    const std::int64_t start_ns = std::max(here_ns, there_ns) + 30'000;
    for (const bool is_other : {false, true}) {
      add(is_other, EventKind::kSubmit, is_other ? there_ns : here_ns, 7);
      add(is_other, EventKind::kBucketStart, start_ns, bucket);
      add(is_other, EventKind::kFused, start_ns, 7, bucket, operation);
      add(is_other, EventKind::kBucketDone, start_ns + 50'000, bucket);
    }
  }
  std::optional<ClockAlignment::Estimate> estimate() const { return alignment_.estimate(); }

 private:
  ClockAlignment alignment_;
};

TEST_CASE("clocks of two hosts are compared by what both do, within the error that is stated") {
  std::mt19937 random(4);
  TwoClocks clocks;
  CHECK(!clocks.estimate());
  for (std::uint32_t bucket = 0; bucket < 200; ++bucket) {
    const std::int64_t time_ns = 10'000'000LL * bucket;
    clocks.run(bucket, time_ns + random() % 1'000'000, time_ns + random() % 1'000'000);
    const auto estimate = clocks.estimate();
    REQUIRE(estimate);
    CHECK(std::abs(estimate->ahead_ns - kAhead) <= estimate->error_ns);
    CHECK(estimate->error_ns <= 60'000);
  }
}

TEST_CASE("a rank that always comes last is no obstacle where data flows both ways") {
  TwoClocks clocks;
  clocks.run(0, 0, 500'000'000);
  CHECK(clocks.estimate()->error_ns < 100'000);
  TwoClocks barriers;  // here only the last rank gives a bound, on one side
  barriers.run(0, 0, 500'000'000, Kind::kBarrier);
  CHECK(barriers.estimate()->error_ns > 100'000'000);
  CHECK(std::abs(barriers.estimate()->ahead_ns - kAhead) <= barriers.estimate()->error_ns);
}

TEST_CASE("a chunk of a trace comes through whole, and a broken one is refused") {
  TraceChunk chunk{.rank = 3, .lost = 9, .labels = {}, .events = {}};
  Label label{.key = 4};
  label.set_name("weight");
  chunk.labels.emplace_back(7, label);
  chunk.events.push_back({.time_ns = 5, .kind = EventKind::kSubmit, .subject = 7});
  const std::string bytes = write_chunk(chunk);
  const std::vector<int> ranks{3};
  const TraceChunk read = read_chunk(bytes, ranks);
  CHECK(read.rank == 3);
  CHECK(read.lost == 9);
  CHECK(read.labels.at(0).first == 7);
  CHECK(read.labels.at(0).second.text() == "weight");
  CHECK(read.events.at(0).kind == EventKind::kSubmit);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK_THROWS(read_chunk(bytes.substr(0, length), ranks));
  }
  CHECK_THROWS(read_chunk(bytes + "x", ranks));
}

}  // namespace
}  // namespace hvd
