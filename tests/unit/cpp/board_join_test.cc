// Ranks that have joined count as arrived everywhere until all have.
#include "boards.h"

namespace hvd::test {
namespace {

const Request kRequest = float_request(Kind::kAllreduce, {4});

TEST_CASE("what waits only for a rank that joins becomes ready") {
  Boards boards(3);
  boards.arrive(0, "both", kRequest);
  boards.arrive(1, "both", kRequest);
  boards.arrive(0, "one", kRequest);
  CHECK(boards.join(2));
  const std::vector<BucketItem> items = boards.bucket(0);
  REQUIRE(items.size() == 1);
  CHECK(items[0].slot == 0);
  CHECK(boards[0].has_absent(items[0]));
  CHECK(boards[2].is_absent(items[0]));
  CHECK(!boards[0].is_absent(items[0]));
  CHECK(!boards[1].is_absent(items[0]));
  CHECK(boards.arrive(1, "one", kRequest));
}

TEST_CASE("a rank that arrived before it joined is not absent") {
  Boards boards(2);
  boards.arrive(1, "a", kRequest);
  CHECK(!boards.join(1));
  CHECK(boards.arrive(0, "a", kRequest));
  const BucketItem item = boards.bucket(0)[0];
  CHECK(!boards[0].has_absent(item));
  CHECK(!boards[1].is_absent(item));
  boards.finish(0);
  CHECK(boards.arrive(0, "a", kRequest));  // the next round goes without it
  CHECK(boards[1].is_absent(boards.bucket(1)[0]));
}

TEST_CASE("the join is an item of its own, ready with the last rank, whom it names") {
  for (const int last : {0, 1, 2}) {
    Boards boards(3);
    for (std::uint32_t round = 0; round < 3; ++round) {  // again and again
      for (int rank = 0; rank < 3; ++rank) {
        if (rank != last) CHECK(!boards.join(rank));
      }
      CHECK(boards.join(last));
      const std::vector<BucketItem> items = boards.bucket(round);
      REQUIRE(items.size() == 1);
      CHECK(!boards[0].has_absent(items[0]));
      for (int rank = 0; rank < 3; ++rank) CHECK(boards[rank].last_of(items[0]) == last);
      boards.finish(round);
    }
  }
}

TEST_CASE("a rank that has joined may submit nothing until the join is over") {
  Boards boards(2);
  boards.join(0);
  CHECK(error_of([&] {
          boards.arrive(0, "a", kRequest);
        }).starts_with("this rank has joined and takes part in everything"));
  boards.join(1);
  CHECK(!boards.arrive(0, "a", kRequest));
}

TEST_CASE("after a join all ranks are awaited again") {
  Boards boards(2);
  boards.join(0);
  CHECK(boards.arrive(1, "a", kRequest));
  boards.bucket(0);
  boards.finish(0);
  boards.join(1);
  boards.bucket(1);
  boards.finish(1);
  CHECK(!boards.arrive(1, "a", kRequest));
  {
    const SharedLock lock = boards[1].lock();
    CHECK(boards[1].missing_ranks(boards.ref(1)) == std::vector<int>{0});
  }
  CHECK(boards.arrive(0, "a", kRequest));
  CHECK(!boards[0].has_absent(boards.bucket(2)[0]));
}

TEST_CASE("an absent rank brings no rows, whatever it brought before") {
  Boards boards(2);
  const auto rows = [](std::int64_t count) { return float_request(Kind::kAllgather, {count}); };
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 2; ++rank) boards.arrive(rank, "a", {rows(5), rows(6)});
    CHECK(boards.run_one() == "");
  }
  boards.join(1);
  boards.arrive(0, "a", {rows(3), rows(4)});
  std::vector<BucketItem> tensors;
  boards[1].tensors_of(boards.bucket(2)[0], tensors);
  REQUIRE(tensors.size() == 2);
  CHECK(boards[1].rows_of(tensors[0], 0) == 3);
  CHECK(boards[1].rows_of(tensors[0], 1) == 0);
  CHECK(boards[1].rows_of(tensors[1], 0) == 4);
  CHECK(boards[1].rows_of(tensors[1], 1) == 0);
}

TEST_CASE("an absent rank sends nothing in an alltoall") {
  Boards boards(3);
  const Boards::Requests requests{float_request(Kind::kAlltoall, {6})};
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 3; ++rank) boards.arrive(rank, "a", requests, {1, 2, 3});
    CHECK(boards.run_one() == "");
  }
  boards.join(1);
  boards.arrive(2, "a", requests, {4, 1, 1});
  boards.arrive(0, "a", requests, {3, 0, 3});
  std::vector<std::int64_t> splits;
  boards[1].splits_of(boards.bucket(2)[0], splits);
  CHECK(splits == std::vector<std::int64_t>{3, 0, 3, 0, 0, 0, 4, 1, 1});
}

TEST_CASE("a broadcast whose root has joined is an error; one with another root is not") {
  Boards boards(3);
  const auto from = [](int root) {
    Request request = float_request(Kind::kBroadcast, {4});
    request.root = root;
    return request;
  };
  boards.arrive(0, "early", from(2));
  boards.arrive(1, "early", from(2));
  CHECK(boards.join(2));
  CHECK(boards.run_one().starts_with(
      "BROADCAST is not supported with Join when its root has joined: rank 2 is the root"));
  for (int rank = 0; rank < 2; ++rank) boards.arrive(rank, "fine", from(1));
  CHECK(boards.run_one() == "");
}

TEST_CASE("in a set that has other numbers than the world the root is a world rank") {
  BoardConfig config;
  config.members = {3, 5};
  Boards boards(2, config);
  Request request = float_request(Kind::kBroadcast, {4});
  request.root = 5;
  boards.join(0);
  boards.arrive(1, "a", request);
  CHECK(boards.run_one() == "");
  request.root = 3;
  boards.arrive(1, "a", request);
  CHECK(boards.run_one().find("rank 3 is the root") != std::string::npos);
}

TEST_CASE("ranks that disagree get their error though another is absent") {
  Boards boards(3);
  boards.join(2);
  boards.arrive(0, "a", kRequest);
  boards.arrive(1, "a", float_request(Kind::kAllreduce, {5}));
  CHECK(boards.run_one().find("rank 1 sent [5] float32, rank 0 sent [4] float32") !=
        std::string::npos);
  for (int rank = 0; rank < 2; ++rank) boards.arrive(rank, "a", kRequest);
  CHECK(boards.run_one() == "");
}

TEST_CASE("ranks that have joined are not missing") {
  Boards boards(3);
  boards.arrive(0, "a", kRequest);
  boards.join(1);
  const SharedLock lock = boards[0].lock();
  CHECK(boards[0].missing_ranks(boards.ref(0)) == std::vector<int>{2});
}

TEST_CASE("a join finds what waits in groups and in slots used again") {
  Boards boards(2, with_cache(0));
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (int rank = 0; rank < 2; ++rank) boards.arrive(rank, "old", {kRequest, kRequest});
    CHECK(boards.run_one() == "");
  }
  boards.arrive(0, "group", {kRequest, kRequest, kRequest});
  boards.arrive(0, "single", kRequest);
  CHECK(boards.join(1));
  CHECK(boards.bucket(3).size() == 2);
  CHECK(!boards[0].has_ready());
}

}  // namespace
}  // namespace hvd::test
