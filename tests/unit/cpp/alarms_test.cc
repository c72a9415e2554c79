#include "control/alarms.h"

#include <doctest/doctest.h>

#include <vector>

namespace hvd {
namespace {

TEST_CASE("the first alarm is kept, later ones are counted") {
  std::vector<std::uint64_t> memory(Alarms::region_bytes() / sizeof(std::uint64_t) + 1);
  auto* base = reinterpret_cast<std::byte*>(memory.data());
  Alarms mine(base);
  Alarms theirs(base);
  CHECK(!mine.first());
  theirs.raise({.code = ErrorCode::kTimeout, .rank = 1, .text = "first"});
  mine.raise({.code = ErrorCode::kSystem, .rank = 0, .text = std::string(5000, 'x')});
  CHECK(mine.count() == 2);
  REQUIRE(mine.first());
  CHECK(mine.first()->text == "first");
  CHECK(mine.first()->code == ErrorCode::kTimeout);
}

TEST_CASE("the first rank to leave is remembered") {
  std::vector<std::uint64_t> memory(Alarms::region_bytes() / sizeof(std::uint64_t) + 1);
  Alarms alarms(reinterpret_cast<std::byte*>(memory.data()));
  CHECK(!alarms.first_departure());
  alarms.note_departure(0);
  alarms.note_departure(2);
  CHECK(alarms.first_departure() == 0);
}

}  // namespace
}  // namespace hvd
