#include "control/alarms.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

namespace hvd {
namespace {

// Alarms of a world in memory of their own.
struct Region {
  explicit Region(int size) : memory(Alarms::region_bytes(size) / sizeof(std::uint64_t) + 1) {}
  std::byte* base() { return reinterpret_cast<std::byte*>(memory.data()); }
  std::vector<std::uint64_t> memory;
};

TEST_CASE("the first alarm is kept, later ones are counted") {
  Region region(2);
  Alarms mine(region.base(), 2);
  Alarms theirs(region.base(), 2);
  CHECK(!mine.first());
  theirs.raise({.code = ErrorCode::kTimeout, .rank = 1, .text = "first", .ranks = {1}});
  mine.raise({.code = ErrorCode::kSystem, .text = std::string(5000, 'x'), .ranks = {0}});
  CHECK(mine.count() == 2);
  REQUIRE(mine.first());
  CHECK(mine.first()->text == "first");
  CHECK(mine.first()->code == ErrorCode::kTimeout);
  CHECK(mine.first()->ranks == std::vector<int>{1});
}

TEST_CASE("an alarm has room for all ranks of a large world, whatever fits of its texts") {
  constexpr int kSize = 4099;
  Region region(kSize);
  std::vector<int> ranks(kSize);
  std::iota(ranks.begin(), ranks.end(), 0);
  const Alarm alarm{.text = std::string(5000, 'x'),
                    .ranks = ranks,
                    .operation = "allreduce '" + std::string(5000, 'y')};
  Alarms(region.base(), kSize).raise(alarm);
  const auto found = Alarms(region.base(), kSize).first();
  REQUIRE(found);
  CHECK(found->ranks == ranks);
  CHECK(found->text == std::string(Alarms::kMostTextBytes, 'x'));
  CHECK(found->operation == alarm.operation.substr(0, Alarms::kMostOperationBytes));
}

TEST_CASE("the first rank to leave is remembered") {
  Region region(3);
  Alarms alarms(region.base(), 3);
  CHECK(!alarms.first_departure());
  alarms.note_departure(0);
  alarms.note_departure(2);
  CHECK(alarms.first_departure() == 0);
}

}  // namespace
}  // namespace hvd
