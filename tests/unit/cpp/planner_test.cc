#include "fusion/planner.h"

#include <doctest/doctest.h>

#include <array>
#include <span>

namespace hvd {
namespace {

FusionItem allreduce(std::size_t size_bytes) {
  return {.kind = Kind::kAllreduce, .size_bytes = size_bytes};
}

FusionItem broadcast(int root) { return {.kind = Kind::kBroadcast, .root = root, .size_bytes = 8}; }

// How many items from the front form the next bucket.
std::size_t plan_bucket(std::span<const FusionItem> items, std::size_t threshold_bytes) {
  BucketPlan plan(threshold_bytes);
  std::size_t count = 0;
  while (count < items.size() && plan.accepts(items[count])) ++count;
  return count;
}

TEST_CASE("a bucket ends where the threshold is reached") {
  const std::array items{allreduce(40), allreduce(40), allreduce(40)};
  CHECK(plan_bucket(items, 1000) == 3);
  CHECK(plan_bucket(items, 80) == 2);
  CHECK(plan_bucket(items, 79) == 1);
}

TEST_CASE("a bucket has at least one tensor, however large") {
  const std::array items{allreduce(40), allreduce(0)};
  CHECK(plan_bucket(items, 0) == 1);
}

TEST_CASE("kinds do not mix, and broadcasts of different roots do not") {
  const std::array items{allreduce(4), allreduce(4), broadcast(0), broadcast(0), broadcast(1)};
  const std::span all(items);
  CHECK(plan_bucket(all, 1000) == 2);
  CHECK(plan_bucket(all.subspan(2), 1000) == 2);
  CHECK(plan_bucket(all.subspan(4), 1000) == 1);
}

}  // namespace
}  // namespace hvd
