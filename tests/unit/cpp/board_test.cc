#include "boards.h"

namespace hvd::test {
namespace {

const Request kRequest = float_request(Kind::kAllreduce, {4});

TEST_CASE("a tensor is ready when the last rank arrives") {
  Boards boards(3);
  CHECK(!boards.arrive(1, "a", kRequest));
  CHECK(!boards.arrive(0, "a", kRequest));
  CHECK(!boards[0].has_ready());
  CHECK(boards.arrive(2, "a", kRequest));
  CHECK(boards[0].has_ready());
  CHECK(boards[0].ready_bytes() == 16);
}

TEST_CASE("what became ready meanwhile runs as one bucket, in order of readiness") {
  Boards boards(2);
  for (const char* name : {"a", "b", "c"}) boards.arrive(0, name, kRequest);
  for (const char* name : {"c", "a", "b"}) boards.arrive(1, name, kRequest);
  const auto items = boards.bucket(0);
  REQUIRE(items.size() == 3);
  CHECK(items[0].slot == 2);
  CHECK(items[1].slot == 0);
  CHECK(items[2].slot == 1);
  CHECK(boards[1].has_bucket(0));
  CHECK(!boards[1].has_bucket(1));
  CHECK(!boards[1].has_ready());
}

TEST_CASE("a rank that disagrees makes an error for everybody, once all have arrived") {
  Boards boards(2);
  boards.arrive(0, "a", kRequest);
  CHECK(boards.arrive(1, "a", float_request(Kind::kAllreduce, {5})));
  const auto items = boards.bucket(0);
  REQUIRE(items.size() == 1);
  for (int rank = 0; rank < 2; ++rank) {
    const auto error = boards[rank].error_of(items[0]);
    REQUIRE(error);
    CHECK(error->find("rank 1 sent [5] float32, rank 0 sent [4] float32") != std::string::npos);
  }
}

TEST_CASE("after an error the name works again") {
  Boards boards(2);
  boards.arrive(0, "a", kRequest);
  boards.arrive(1, "a", float_request(Kind::kAllreduce, {5}));
  boards.bucket(0);
  boards.finish(0);
  for (int rank = 0; rank < 2; ++rank) boards.arrive(rank, "a", kRequest);
  CHECK(!boards[0].error_of(boards.bucket(1)[0]));
}

TEST_CASE("two rounds of one name may overlap") {
  Boards boards(2);
  const auto rows = [](std::int64_t count) { return float_request(Kind::kAllgather, {count}); };
  boards.arrive(0, "a", rows(1));
  boards.arrive(1, "a", rows(2));
  const BucketItem first = boards.bucket(0)[0];
  boards.arrive(0, "a", rows(30));  // rank 1 has not run the first round yet
  CHECK(boards[1].rows_of(first, 0) == 1);
  CHECK(boards[1].rows_of(first, 1) == 2);
  boards.arrive(1, "a", rows(40));
  const BucketItem second = boards.bucket(1)[0];
  CHECK(boards[1].rows_of(second, 0) == 30);
  CHECK(boards[1].rows_of(second, 1) == 40);
}

TEST_CASE("the text of a mismatch tells this round's rows, not those of an earlier one") {
  Boards boards(2);
  const auto rows = [](std::int64_t count, std::int64_t width) {
    return float_request(Kind::kAllgather, {count, width});
  };
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 2; ++rank) boards.arrive(rank, "a", rows(1, 2));
    boards.bucket(round);
    boards.finish(round);
  }
  boards.arrive(0, "a", rows(7, 2));
  boards.arrive(1, "a", rows(8, 3));
  const auto error = boards[0].error_of(boards.bucket(2)[0]);
  REQUIRE(error);
  CHECK(error->find("rank 1 sent [8, 3] float32, rank 0 sent [7, 2] float32") != std::string::npos);
}

TEST_CASE("missing ranks are those that have not arrived in this round") {
  Boards boards(3);
  for (int rank = 0; rank < 3; ++rank) boards.arrive(rank, "a", kRequest);
  boards.bucket(0);
  boards.finish(0);
  boards.arrive(1, "a", kRequest);
  const SharedLock lock = boards[1].lock();
  CHECK(boards[1].missing_ranks(boards.ref(1)) == std::vector<int>{0, 2});
}

TEST_CASE("resting names are kept up to the capacity, and the least recently used goes first") {
  Boards boards(1, with_cache(2));
  std::uint32_t bucket = 0;
  const auto run = [&](const char* name) {
    boards.arrive(0, name, kRequest);
    boards.bucket(bucket);
    boards.finish(bucket++);
    return boards.ref(0);
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
  Boards boards(1, with_cache(0));
  for (std::uint32_t i = 0; i < 3 * kMaxSlots; ++i) {
    boards.arrive(0, "name " + std::to_string(i), kRequest);
    REQUIRE(boards.bucket(i).size() == 1);
    boards.finish(i);
  }
  CHECK(boards.ref(0).slot == 0);
}

TEST_CASE("a cache larger than the board gives way to new names") {
  Boards boards(1, with_cache(1'000'000'000));
  for (std::uint32_t i = 0; i < kMaxSlots + 10; ++i) {
    boards.arrive(0, "name " + std::to_string(i), kRequest);
    REQUIRE(boards.bucket(i).size() == 1);
    boards.finish(i);
  }
}

TEST_CASE("more names at one time than there are slots is an error that says so") {
  Boards boards(2);
  std::string text;
  for (std::uint32_t i = 0; i <= kMaxSlots && text.empty(); ++i) {
    text = error_of([&] { boards.arrive(0, "name " + std::to_string(i), kRequest); });
  }
  CHECK(text == "65536 tensors are in flight on this host already; synchronize some first");
}

}  // namespace
}  // namespace hvd::test
