// Ranks that have joined count as arrived everywhere until all have.
#include "boards.h"

namespace hvd::test {
namespace {

const Request kRequest = float_request(Kind::kAllreduce, {4});

TEST_CASE("what waits only for a rank that joins becomes ready") {
  NegotiationTables negotiations(3);
  negotiations.arrive(0, "both", kRequest);
  negotiations.arrive(1, "both", kRequest);
  negotiations.arrive(0, "one", kRequest);
  CHECK(negotiations.join(2));
  const std::vector<BucketItem> items = negotiations.bucket(0);
  REQUIRE(items.size() == 1);
  CHECK(items[0].slot == 0);
  CHECK(negotiations[0].has_absent(items[0]));
  CHECK(negotiations[2].is_absent(items[0]));
  CHECK(!negotiations[0].is_absent(items[0]));
  CHECK(!negotiations[1].is_absent(items[0]));
  CHECK(negotiations.arrive(1, "one", kRequest));
}

TEST_CASE("a rank that arrived before it joined is not absent") {
  NegotiationTables negotiations(2);
  negotiations.arrive(1, "a", kRequest);
  CHECK(!negotiations.join(1));
  CHECK(negotiations.arrive(0, "a", kRequest));
  const BucketItem item = negotiations.bucket(0)[0];
  CHECK(!negotiations[0].has_absent(item));
  CHECK(!negotiations[1].is_absent(item));
  negotiations.finish(0);
  CHECK(negotiations.arrive(0, "a", kRequest));  // the next round goes without it
  CHECK(negotiations[1].is_absent(negotiations.bucket(1)[0]));
}

TEST_CASE("the join is an item of its own, ready with the last rank, whom it names") {
  for (const int last : {0, 1, 2}) {
    NegotiationTables negotiations(3);
    for (std::uint32_t round = 0; round < 3; ++round) {  // again and again
      for (int rank = 0; rank < 3; ++rank) {
        if (rank != last) CHECK(!negotiations.join(rank));
      }
      CHECK(negotiations.join(last));
      const std::vector<BucketItem> items = negotiations.bucket(round);
      REQUIRE(items.size() == 1);
      CHECK(!negotiations[0].has_absent(items[0]));
      for (int rank = 0; rank < 3; ++rank) CHECK(negotiations[rank].last_of(items[0]) == last);
      negotiations.finish(round);
    }
  }
}

TEST_CASE("a rank that has joined may submit nothing until the join is over") {
  NegotiationTables negotiations(2);
  negotiations.join(0);
  CHECK(error_of([&] {
          negotiations.arrive(0, "a", kRequest);
        }).starts_with("this rank has joined and takes part in everything"));
  negotiations.join(1);
  CHECK(!negotiations.arrive(0, "a", kRequest));
}

TEST_CASE("after a join all ranks are awaited again") {
  NegotiationTables negotiations(2);
  negotiations.join(0);
  CHECK(negotiations.arrive(1, "a", kRequest));
  negotiations.bucket(0);
  negotiations.finish(0);
  negotiations.join(1);
  negotiations.bucket(1);
  negotiations.finish(1);
  CHECK(!negotiations.arrive(1, "a", kRequest));
  {
    const SharedLock lock = negotiations[1].lock();
    CHECK(negotiations[1].missing_ranks(negotiations.ref(1)) == std::vector<int>{0});
  }
  CHECK(negotiations.arrive(0, "a", kRequest));
  CHECK(!negotiations[0].has_absent(negotiations.bucket(2)[0]));
}

TEST_CASE("an absent rank brings no rows, whatever it brought before") {
  NegotiationTables negotiations(2);
  const auto rows = [](std::int64_t count) { return float_request(Kind::kAllgather, {count}); };
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "a", {rows(5), rows(6)});
    CHECK(negotiations.run_one() == "");
  }
  negotiations.join(1);
  negotiations.arrive(0, "a", {rows(3), rows(4)});
  std::vector<BucketItem> tensors;
  negotiations[1].tensors_of(negotiations.bucket(2)[0], tensors);
  REQUIRE(tensors.size() == 2);
  CHECK(negotiations[1].rows_of(tensors[0], 0) == 3);
  CHECK(negotiations[1].rows_of(tensors[0], 1) == 0);
  CHECK(negotiations[1].rows_of(tensors[1], 0) == 4);
  CHECK(negotiations[1].rows_of(tensors[1], 1) == 0);
}

TEST_CASE("an absent rank sends nothing in an alltoall") {
  NegotiationTables negotiations(3);
  const NegotiationTables::Requests requests{float_request(Kind::kAlltoall, {6})};
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 3; ++rank) negotiations.arrive(rank, "a", requests, {1, 2, 3});
    CHECK(negotiations.run_one() == "");
  }
  negotiations.join(1);
  negotiations.arrive(2, "a", requests, {4, 1, 1});
  negotiations.arrive(0, "a", requests, {3, 0, 3});
  std::vector<std::int64_t> splits;
  negotiations[1].splits_of(negotiations.bucket(2)[0], splits);
  CHECK(splits == std::vector<std::int64_t>{3, 0, 3, 0, 0, 0, 4, 1, 1});
}

TEST_CASE("a broadcast whose root has joined is an error; one with another root is not") {
  NegotiationTables negotiations(3);
  const auto from = [](int root) {
    Request request = float_request(Kind::kBroadcast, {4});
    request.root = root;
    return request;
  };
  negotiations.arrive(0, "early", from(2));
  negotiations.arrive(1, "early", from(2));
  CHECK(negotiations.join(2));
  CHECK(negotiations.run_one().starts_with(
      "BROADCAST is not supported with Join when its root has joined: rank 2 is the root"));
  for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "fine", from(1));
  CHECK(negotiations.run_one() == "");
}

TEST_CASE("in a set that has other numbers than the world the root is a world rank") {
  NegotiationConfig config;
  config.members = {3, 5};
  NegotiationTables negotiations(2, config);
  Request request = float_request(Kind::kBroadcast, {4});
  request.root = 5;
  negotiations.join(0);
  negotiations.arrive(1, "a", request);
  CHECK(negotiations.run_one() == "");
  request.root = 3;
  negotiations.arrive(1, "a", request);
  CHECK(negotiations.run_one().find("rank 3 is the root") != std::string::npos);
}

TEST_CASE("ranks that disagree get their error though another is absent") {
  NegotiationTables negotiations(3);
  negotiations.join(2);
  negotiations.arrive(0, "a", kRequest);
  negotiations.arrive(1, "a", float_request(Kind::kAllreduce, {5}));
  CHECK(negotiations.run_one().find("rank 1 sent [5] float32, rank 0 sent [4] float32") !=
        std::string::npos);
  for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "a", kRequest);
  CHECK(negotiations.run_one() == "");
}

TEST_CASE("ranks that have joined are not missing") {
  NegotiationTables negotiations(3);
  negotiations.arrive(0, "a", kRequest);
  negotiations.join(1);
  const SharedLock lock = negotiations[0].lock();
  CHECK(negotiations[0].missing_ranks(negotiations.ref(0)) == std::vector<int>{2});
}

TEST_CASE("a join finds what waits in groups and in slots used again") {
  NegotiationTables negotiations(2, with_cache(0));
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (int rank = 0; rank < 2; ++rank) negotiations.arrive(rank, "old", {kRequest, kRequest});
    CHECK(negotiations.run_one() == "");
  }
  negotiations.arrive(0, "group", {kRequest, kRequest, kRequest});
  negotiations.arrive(0, "single", kRequest);
  CHECK(negotiations.join(1));
  CHECK(negotiations.bucket(3).size() == 2);
  CHECK(!negotiations[0].has_ready());
}

}  // namespace
}  // namespace hvd::test
