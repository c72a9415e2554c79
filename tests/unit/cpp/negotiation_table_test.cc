#include "boards.h"

namespace hvd::test {
namespace {

const Request kRequest = float_request(Kind::kAllreduce, {4});

TEST_CASE("a tensor is ready when the last rank arrives") {
  NegotiationTables negotiations(3);
  CHECK(!negotiations.arrive(1, "a", kRequest));
  CHECK(!negotiations.arrive(0, "a", kRequest));
  CHECK(!negotiations[0].has_ready());
  CHECK(negotiations.arrive(2, "a", kRequest));
  CHECK(negotiations[0].has_ready());
  CHECK(negotiations[0].ready_bytes() == 16);
}

TEST_CASE("what became ready meanwhile runs as one bucket, in order of readiness") {
  NegotiationTables negotiations(2);
  for (const char* name : {"a", "b", "c"}) negotiations.arrive(0, name, kRequest);
  for (const char* name : {"c", "a", "b"}) negotiations.arrive(1, name, kRequest);
  const auto items = negotiations.bucket(0);
  REQUIRE(items.size() == 3);
  CHECK(items[0].slot == 2);
  CHECK(items[1].slot == 0);
  CHECK(items[2].slot == 1);
  CHECK(negotiations[1].has_bucket(0));
  CHECK(!negotiations[1].has_bucket(1));
  CHECK(!negotiations[1].has_ready());
}

TEST_CASE("a rank that disagrees makes an error for everybody, once all have arrived") {
  NegotiationTables negotiations(2);
  negotiations.arrive(0, "a", kRequest);
  CHECK(negotiations.arrive(1, "a", float_request(Kind::kAllreduce, {5})));
  const auto items = negotiations.bucket(0);
  REQUIRE(items.size() == 1);
  for (int rank = 0; rank < 2; ++rank) {
    const auto error = negotiations[rank].error_of(items[0]);
    REQUIRE(error);
    CHECK(error->find("rank 1 sent [5] float32, rank 0 sent [4] float32") != std::string::npos);
  }
}

TEST_CASE("after an error the name works again") {
  NegotiationTables negotiations(2);
  negotiations.arrive(0, "a", kRequest);
  negotiations.arrive(1, "a", float_request(Kind::kAllreduce, {5}));
  negotiations.bucket(0);
  negotiations.finish(0);
  for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "a", kRequest);
  CHECK(!negotiations[0].error_of(negotiations.bucket(1)[0]));
}

TEST_CASE("two rounds of one name may overlap") {
  NegotiationTables negotiations(2);
  const auto rows = [](std::int64_t count) { return float_request(Kind::kAllgather, {count}); };
  negotiations.arrive(0, "a", rows(1));
  negotiations.arrive(1, "a", rows(2));
  const BucketItem first = negotiations.bucket(0)[0];
  negotiations.arrive(0, "a", rows(30));  // rank 1 has not run the first round yet
  CHECK(negotiations[1].rows_of(first, 0) == 1);
  CHECK(negotiations[1].rows_of(first, 1) == 2);
  negotiations.arrive(1, "a", rows(40));
  const BucketItem second = negotiations.bucket(1)[0];
  CHECK(negotiations[1].rows_of(second, 0) == 30);
  CHECK(negotiations[1].rows_of(second, 1) == 40);
}

TEST_CASE("the text of a mismatch tells this round's rows, not those of an earlier one") {
  NegotiationTables negotiations(2);
  const auto rows = [](std::int64_t count, std::int64_t width) {
    return float_request(Kind::kAllgather, {count, width});
  };
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "a", rows(1, 2));
    negotiations.bucket(round);
    negotiations.finish(round);
  }
  negotiations.arrive(0, "a", rows(7, 2));
  negotiations.arrive(1, "a", rows(8, 3));
  const auto error = negotiations[0].error_of(negotiations.bucket(2)[0]);
  REQUIRE(error);
  CHECK(error->find("rank 1 sent [8, 3] float32, rank 0 sent [7, 2] float32") != std::string::npos);
}

TEST_CASE("missing ranks are those that have not arrived in this round") {
  NegotiationTables negotiations(3);
  for (int rank = 0; rank < 3; ++rank) negotiations.arrive(rank, "a", kRequest);
  negotiations.bucket(0);
  negotiations.finish(0);
  negotiations.arrive(1, "a", kRequest);
  const SharedLock lock = negotiations[1].lock();
  CHECK(negotiations[1].missing_ranks(negotiations.ref(1)) == std::vector<int>{0, 2});
}

TEST_CASE("resting names are kept up to the capacity, and the least recently used goes first") {
  NegotiationTables negotiations(1, with_cache(2));
  std::uint32_t bucket = 0;
  const auto run = [&](const char* name) {
    negotiations.arrive(0, name, kRequest);
    negotiations.bucket(bucket);
    negotiations.finish(bucket++);
    return negotiations.ref(0);
  };
  const SlotRef a = run("a");
  const SlotRef b = run("b");
  CHECK(run("a").slot == a.slot);
  const SlotRef c = run("c");  // b is the oldest now
  CHECK(run("a").generation == a.generation);
  const SlotRef b_again = run("b");
  CHECK((b_again.slot != b.slot || b_again.generation != b.generation));
  CHECK(c.slot != a.slot);
}

TEST_CASE("without a cache every name is forgotten at once and its slot used again") {
  NegotiationTables negotiations(1, with_cache(0));
  for (std::uint32_t i = 0; i < 3 * kMaxSlots; ++i) {
    negotiations.arrive(0, "name " + std::to_string(i), kRequest);
    REQUIRE(negotiations.bucket(i).size() == 1);
    negotiations.finish(i);
  }
  CHECK(negotiations.ref(0).slot == 0);
}

TEST_CASE("a cache larger than the board gives way to new names") {
  NegotiationTables negotiations(1, with_cache(1'000'000'000));
  for (std::uint32_t i = 0; i < kMaxSlots + 10; ++i) {
    negotiations.arrive(0, "name " + std::to_string(i), kRequest);
    REQUIRE(negotiations.bucket(i).size() == 1);
    negotiations.finish(i);
  }
}

TEST_CASE("more names at one time than there are slots is an error that says so") {
  NegotiationTables negotiations(2);
  std::string text;
  for (std::uint32_t i = 0; i <= kMaxSlots && text.empty(); ++i) {
    text = error_of([&] { negotiations.arrive(0, "name " + std::to_string(i), kRequest); });
  }
  CHECK(text == "65536 tensors are in flight on this host already; synchronize some first");
}

}  // namespace
}  // namespace hvd::test
