// A group of tensors, or an alltoall, is one item over a chain of slots.
#include "boards.h"
#include "contains.h"

namespace hvd::test {
namespace {

// As many tensors as there are lengths.
NegotiationTables::Requests group(const std::vector<std::int64_t>& lengths,
                                  Kind kind = Kind::kAllreduce) {
  NegotiationTables::Requests requests;
  for (const std::int64_t length : lengths) {
    requests.push_back(float_request(kind, {length}));
    requests.back().is_grouped = true;
  }
  return requests;
}

const Request kSingle = float_request(Kind::kAllreduce, {4});

TEST_CASE("a group is one item, ready when the last rank has arrived with all of it") {
  NegotiationTables negotiations(3);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(!negotiations[0].has_ready());
    CHECK(negotiations.arrive(rank, "g", group({1, 2, 3})) == (rank == 2));
  }
  CHECK(negotiations[0].ready_bytes() == 24);
  const std::vector<BucketItem> items = negotiations.bucket(0);
  REQUIRE(items.size() == 1);
  CHECK(negotiations[0].ready_bytes() == 0);
  std::vector<BucketItem> tensors;
  negotiations[2].tensors_of(items[0], tensors);
  REQUIRE(tensors.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(negotiations[2].request_of(tensors[i]).dims[0] == static_cast<std::int64_t>(i + 1));
  }
}

TEST_CASE("one tensor that differs fails the whole group, and the name works again") {
  NegotiationTables negotiations(2);
  for (int round = 0; round < 3; ++round) {
    negotiations.arrive(0, "g", group({1, 2, 3}));
    negotiations.arrive(1, "g", group({1, 7, 3}));
    const std::string text = negotiations.run_one();
    CHECK(contains(text, "tensor 2 of 3: Mismatched ALLREDUCE tensor shapes"));
    CHECK(contains(text, "rank 1 sent [7] float32, rank 0 sent [2] float32"));
    for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "g", group({1, 7, 3}));
    CHECK(negotiations.run_one() == "");
  }
}

TEST_CASE("groups of different sizes fail, whoever comes first, and the name works again") {
  for (const int first : {0, 1}) {
    NegotiationTables negotiations(2);
    const auto sent = [](int rank) { return rank == 0 ? group({1, 2}) : group({1, 2, 3}); };
    negotiations.arrive(first, "g", sent(first));
    negotiations.arrive(1 - first, "g", sent(1 - first));
    CHECK(contains(negotiations.run_one(),
                   "Mismatched group sizes: rank " + std::to_string(1 - first)));
    for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "g", group({1, 2}));
    CHECK(negotiations.run_one() == "");
  }
}

TEST_CASE("a group may have another size in each round") {
  NegotiationTables negotiations(2);
  std::uint32_t bucket = 0;
  const std::vector<std::vector<std::int64_t>> rounds{{1, 2, 3},    {4}, {5, 6, 7, 8, 9}, {1, 2, 3},
                                                      {4, 5, 6, 7}, {4}, {1, 2, 3}};
  for (const auto& lengths : rounds) {
    for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "g", group(lengths));
    const std::vector<BucketItem> items = negotiations.bucket(bucket);
    REQUIRE(items.size() == 1);
    CHECK(!negotiations[0].error_of(items[0]));
    std::vector<BucketItem> tensors;
    negotiations[0].tensors_of(items[0], tensors);
    std::vector<std::int64_t> found;
    for (const BucketItem& tensor : tensors) {
      found.push_back(negotiations[0].request_of(tensor).dims[0]);
    }
    CHECK(found == lengths);
    negotiations.finish(bucket++);
  }
}

TEST_CASE("two rounds of a group may overlap") {
  NegotiationTables negotiations(2);
  const auto rows = [](std::int64_t a, std::int64_t b) { return group({a, b}, Kind::kAllgather); };
  negotiations.arrive(0, "g", rows(1, 2));
  negotiations.arrive(1, "g", rows(3, 4));
  const BucketItem first = negotiations.bucket(0)[0];
  negotiations.arrive(0, "g", rows(10, 20));  // rank 1 has not run the first round yet
  negotiations.arrive(1, "g", rows(30, 40));
  const BucketItem second = negotiations.bucket(1)[0];
  for (const auto& [item, factor] : {std::pair(first, 1), std::pair(second, 10)}) {
    std::vector<BucketItem> tensors;
    negotiations[1].tensors_of(item, tensors);
    REQUIRE(tensors.size() == 2);
    CHECK(negotiations[1].rows_of(tensors[0], 0) == 1 * factor);
    CHECK(negotiations[1].rows_of(tensors[1], 0) == 2 * factor);
    CHECK(negotiations[1].rows_of(tensors[0], 1) == 3 * factor);
    CHECK(negotiations[1].rows_of(tensors[1], 1) == 4 * factor);
  }
}

TEST_CASE("slots of a forgotten group serve other names, and the group finds new ones") {
  NegotiationTables negotiations(1, with_cache(0));
  for (int round = 0; round < 50; ++round) {
    negotiations.arrive(0, "g", group({1, 2, 3, 4}));
    CHECK(negotiations.run_one() == "");
    for (int i = 0; i < 6; ++i) {
      negotiations.arrive(0, "single " + std::to_string(i), kSingle);
      CHECK(negotiations.ref(0).slot < 6);  // nothing leaks
      CHECK(negotiations.run_one() == "");
    }
    negotiations.arrive(0, "h", group({5, 6}));
    CHECK(negotiations.run_one() == "");
  }
}

TEST_CASE("a slot that was in a group's chain remembers nothing of it") {
  NegotiationTables negotiations(2, with_cache(0));
  const NegotiationTables::Requests odd(3, float_request(Kind::kAllgather, {9, 9}));
  for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "g", odd);
  CHECK(negotiations.run_one() == "");
  for (const char* name : {"a", "b", "c"}) negotiations.arrive(0, name, kSingle);
  for (const char* name : {"a", "b", "c"}) negotiations.arrive(1, name, kSingle);
  const std::vector<BucketItem> items = negotiations.bucket(1);
  REQUIRE(items.size() == 3);
  for (const BucketItem& item : items) {
    std::vector<BucketItem> tensors;
    negotiations[0].tensors_of(item, tensors);
    CHECK(tensors.size() == 1);
    CHECK(negotiations[0].request_of(item).shape().size() == 1);
    CHECK(!negotiations[0].error_of(item));
  }
}

TEST_CASE("a group for which there are not enough slots leaves the board usable") {
  NegotiationTables negotiations(1);
  const std::vector<std::int64_t> half(kMaxSlots / 2, 1);
  negotiations.arrive(0, "first", group(half));
  negotiations.arrive(0, "one", kSingle);
  CHECK(contains(error_of([&] { negotiations.arrive(0, "second", group(half)); }),
                 "tensors are in flight on this host already; synchronize some first"));
  for (std::uint32_t index = 0; negotiations[0].has_ready(); ++index) {
    negotiations.bucket(index);
    negotiations.finish(index);
  }
  CHECK(negotiations.arrive(0, "third", group(half)));
  CHECK(negotiations.arrive(0, "fourth", group(std::vector<std::int64_t>(half.size() - 1, 1))));
}

TEST_CASE("a group larger than the board is refused with a reason") {
  NegotiationTables negotiations(1);
  const auto large = group(std::vector<std::int64_t>(kMaxSlots + 1, 1));
  CHECK(error_of([&] { negotiations.arrive(0, "g", large); }) ==
        "a group of 65537 tensors is too large; at most 65536 can be in flight on a host");
  CHECK(negotiations.arrive(0, "g", group(std::vector<std::int64_t>(kMaxSlots, 1))));
}

TEST_CASE("groups go with other tensors only where they may") {
  for (const bool fuse_groups : {true, false}) {
    NegotiationConfig config;
    config.fuse_groups = fuse_groups;
    NegotiationTables negotiations(1, config);
    negotiations.arrive(0, "a", kSingle);
    negotiations.arrive(0, "b", kSingle);
    negotiations.arrive(0, "g", group({1, 2}));
    negotiations.arrive(0, "h", group({1, 2}));
    negotiations.arrive(0, "c", kSingle);
    std::vector<std::size_t> sizes;
    for (std::uint32_t index = 0; negotiations[0].has_ready(); ++index) {
      sizes.push_back(negotiations.bucket(index).size());
    }
    CHECK(sizes ==
          (fuse_groups ? std::vector<std::size_t>{5} : std::vector<std::size_t>{2, 1, 1, 1}));
  }
}

TEST_CASE("the splits of an alltoall make a table of all ranks, anew in every round") {
  NegotiationTables negotiations(3);
  std::uint32_t bucket = 0;
  for (const std::int64_t base : {0, 100, 200, 7}) {
    for (const int rank : {1, 2, 0}) {
      const std::int64_t at = base + 10 * rank;
      const Request request = float_request(Kind::kAlltoall, {3 * at + 3, 2});
      negotiations.arrive(rank, "a", {request}, {at, at + 1, at + 2});
    }
    std::vector<std::int64_t> splits;
    negotiations[1].splits_of(negotiations.bucket(bucket)[0], splits);
    CHECK(splits == std::vector<std::int64_t>{base, base + 1, base + 2, base + 10, base + 11,
                                              base + 12, base + 20, base + 21, base + 22});
    negotiations.finish(bucket++);
  }
}

TEST_CASE("the text of a mismatched alltoall tells this round's rows") {
  NegotiationTables negotiations(2);
  const auto send = [&](int rank, std::int64_t rows, std::int64_t width) {
    negotiations.arrive(rank, "a", {float_request(Kind::kAlltoall, {rows, width})}, {rows, 0});
  };
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 2; ++rank) send(rank, 1, 2);
    CHECK(negotiations.run_one() == "");
  }
  send(0, 7, 2);
  send(1, 8, 3);
  CHECK(contains(negotiations.run_one(), "rank 1 sent [8, 3] float32, rank 0 sent [7, 2] float32"));
}

TEST_CASE(
    "an alltoall where others send something else is an error on the board, not in its rows") {
  NegotiationTables negotiations(3);
  negotiations.arrive(0, "a", kSingle);
  negotiations.arrive(1, "a", {float_request(Kind::kAlltoall, {3})}, {1, 1, 1});
  negotiations.arrive(2, "a", group({1, 2, 3, 4}, Kind::kAllgather));
  CHECK(contains(negotiations.run_one(), "Mismatched operations"));
  for (int rank = 0; rank < 3; ++rank) negotiations.arrive(rank, "a", kSingle);
  CHECK(negotiations.run_one() == "");
}

}  // namespace
}  // namespace hvd::test
