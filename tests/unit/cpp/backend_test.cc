// Buckets of every kind on ranks without engines: stepped in random order on one thread, and run by
// threads of which several serve one rank.
#include <doctest/doctest.h>

#include <chrono>
#include <iterator>
#include <mutex>
#include <thread>

#include "backend/host_backend.h"
#include "bucket.h"
#include "core/error.h"
#include "cuts.h"
#include "data_world.h"

namespace hvd {
namespace {

using namespace test;

using Bucket = std::vector<Tensor>;

constexpr BlockNumber kNearWrap = (BlockNumber{1} << 32) - 40;  // the counters wrap in mid-test

// A backend and its place in a row of buckets. One thread at a time.
class Runner {
 public:
  Runner(Peers& peers, std::vector<Bucket>& buckets)
      : rank_(peers.rank()), backend_(peers), buckets_(buckets) {
    begin();
  }

  bool advance(PeerWait& blocked) {
    for (; next_ <= buckets_.size() && backend_.advance(blocked);) begin();
    return next_ > buckets_.size();
  }

 private:
  void begin() {
    if (++next_ > buckets_.size()) return;
    Bucket& bucket = buckets_[next_ - 1];
    works_.clear();
    for (Tensor& tensor : bucket) works_.push_back(tensor.work(rank_));
    backend_.begin(bucket.front().request.kind, works_, cut_of(next_));
  }

  const int rank_;
  HostBackend backend_;
  std::vector<Bucket>& buckets_;
  std::vector<Work> works_;
  std::size_t next_ = 0;  // buckets begun
};

void check_results(const std::vector<Bucket>& buckets) {
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    for (std::size_t i = 0; i < buckets[bucket].size(); ++i) {
      const Tensor& tensor = buckets[bucket][i];
      for (int rank = 0; rank < tensor.size(); ++rank) {
        CAPTURE(tensor.size());
        CAPTURE(std::string(name_of(tensor.request.kind)));
        CAPTURE(std::string(name_of(tensor.request.dtype)));
        CAPTURE(std::string(name_of(tensor.request.op)));
        CAPTURE(tensor.in[rank].size());
        CAPTURE(bucket);
        CAPTURE(i);
        CAPTURE(rank);
        REQUIRE(tensor.is_right(rank));
      }
    }
  }
}

void wipe(std::vector<Bucket>& buckets) {
  for (Bucket& bucket : buckets) {
    for (Tensor& tensor : bucket) tensor.wipe();
  }
}

void check_stepped(int size, std::vector<Bucket> buckets, unsigned seed) {
  std::mt19937 random(seed);
  DataWorld world(size);
  wipe(buckets);
  std::vector<std::unique_ptr<Runner>> runners;
  std::vector<Runner*> addresses;
  for (auto& peers : world.peers) {
    runners.push_back(std::make_unique<Runner>(*peers, buckets));
    addresses.push_back(runners.back().get());
  }
  run_all(world, addresses, random);
  check_results(buckets);
}

// Two threads per rank take turns in advancing it.
void check_threaded(int size, std::vector<Bucket> buckets) {
  DataWorld world(size);
  wipe(buckets);
  std::vector<std::unique_ptr<Runner>> runners;
  std::vector<std::mutex> mutexes(size);
  std::vector<std::thread> threads;
  for (auto& peers : world.peers) runners.push_back(std::make_unique<Runner>(*peers, buckets));
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  std::atomic<int> unfinished{0};
  const auto serve = [&](int rank) {
    while (Clock::now() < deadline) {
      PeerWait blocked;
      {
        const std::lock_guard guard(mutexes[rank]);
        if (runners[rank]->advance(blocked)) return;
      }
      world.peers[rank]->sleep(blocked, std::chrono::milliseconds(1));
    }
    ++unfinished;
  };
  for (int rank = 0; rank < size; ++rank) {
    for (int server = 0; server < 2; ++server) threads.emplace_back(serve, rank);
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(unfinished == 0);
  check_results(buckets);
}

std::vector<std::size_t> boundary_sizes(int size) {
  const std::size_t cell = kBlockBytes;
  std::vector<std::size_t> sizes{0, 1, 63, 64, 65, 64 * 1024 + 1, cell - 1, cell, cell + 1};
  if (size <= 3) sizes.push_back(4 * cell + 100);
  return sizes;
}

TEST_CASE("backend: broadcast from every root, at all boundaries") {
  std::mt19937 random(1);
  for (int size = 1; size <= 4; ++size) {
    std::vector<Bucket> buckets;
    for (const std::size_t bytes : boundary_sizes(size)) {
      const int root = static_cast<int>(random() % static_cast<unsigned>(size));
      buckets.push_back({broadcast_tensor(size, root, bytes, random)});
    }
    for (int root = 0; root < size; ++root) {
      buckets.push_back({broadcast_tensor(size, root, 100, random),
                         broadcast_tensor(size, root, kBlockBytes, random),
                         broadcast_tensor(size, root, 0, random)});
    }
    check_stepped(size, buckets, 2);
  }
}

TEST_CASE("backend: allgather of equal, uneven and empty rows") {
  std::mt19937 random(3);
  for (const int size : {1, 2, 3, 5}) {
    std::vector<Bucket> buckets;
    for (const std::size_t bytes : boundary_sizes(size)) {
      const auto rows = static_cast<std::int64_t>(bytes);
      std::vector<std::int64_t> equal(size, rows);
      std::vector<std::int64_t> uneven(size, 0);
      uneven[random() % uneven.size()] = rows;
      uneven.back() += 3;
      buckets.push_back({allgather_tensor(equal, Dtype::kUint8, 1, random)});
      buckets.push_back({allgather_tensor(uneven, Dtype::kInt8, 1, random),
                         allgather_tensor(uneven, Dtype::kFloat64, 1, random),
                         allgather_tensor(equal, Dtype::kFloat16, 0, random)});
    }
    check_stepped(size, buckets, 4);
  }
}

std::vector<std::int64_t> random_splits(int size, std::int64_t most, std::mt19937& random) {
  std::vector<std::int64_t> splits;
  for (int i = 0; i < size * size; ++i) {
    const bool is_empty = random() % 3 == 0;
    splits.push_back(is_empty ? 0 : static_cast<std::int64_t>(random()) % (most + 1));
  }
  return splits;
}

TEST_CASE("backend: alltoall of equal, uneven and empty splits") {
  std::mt19937 random(5);
  for (const int size : {1, 2, 3, 5}) {
    std::vector<Bucket> buckets;
    const std::size_t ranks = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
    for (const std::size_t bytes : boundary_sizes(size)) {
      const auto rows = static_cast<std::int64_t>(bytes) / size;
      buckets.push_back({alltoall_tensor(size, std::vector<std::int64_t>(ranks, rows),
                                         Dtype::kUint8, 1, random)});
      buckets.push_back(
          {alltoall_tensor(size, random_splits(size, rows, random), Dtype::kInt16, 3, random),
           alltoall_tensor(size, random_splits(size, 5, random), Dtype::kFloat64, 7, random)});
    }
    std::vector<std::int64_t> to_self(ranks, 0);  // more than all blocks together
    for (int rank = 0; rank < size; ++rank) to_self[rank * (size + 1)] = 700'000 * (rank + 1);
    to_self[0] = 0;
    buckets.push_back({alltoall_tensor(size, to_self, Dtype::kUint8, 1, random)});
    to_self[ranks / 2] += 1;
    buckets.push_back({alltoall_tensor(size, to_self, Dtype::kUint8, 1, random)});
    check_stepped(size, buckets, 6);
  }
}

TEST_CASE("backend: reducescatter gives the bits of an allreduce, rows as even as they can be") {
  CHECK(reducescatter_rows(7, 0, 3).count == 3);
  CHECK(reducescatter_rows(7, 1, 3).begin == 3);
  CHECK(reducescatter_rows(7, 2, 3).begin == 5);
  CHECK(reducescatter_rows(7, 2, 3).count == 2);
  CHECK(reducescatter_rows(2, 2, 3).begin == 2);
  CHECK(reducescatter_rows(2, 2, 3).count == 0);
  for (const int size : {2, 3, 5, 64, 2000}) {
    const ReduceScatterPlan plan = plan_reduce_scatter(1'000'000, size, kBlockBytes);
    CHECK(plan.part_bytes % kViewAlignment == 0);
    CHECK(plan.part_bytes * static_cast<std::size_t>(size) <= kBlockBytes);
    CHECK(plan.part_bytes * plan.blocks >= 1'000'000);
    CHECK(plan.part_bytes * (plan.blocks - 1) < 1'000'000);
  }
  std::mt19937 random(7);
  for (const int size : {1, 2, 3, 5}) {
    std::vector<Bucket> buckets;
    for (const std::size_t bytes : boundary_sizes(size)) {
      const auto rows = static_cast<std::int64_t>(bytes / 4);
      buckets.push_back(
          {reducescatter_tensor(size, Dtype::kFloat32, ReduceOp::kSum, rows, 1, {}, random)});
      buckets.push_back(
          {reducescatter_tensor(size, Dtype::kFloat16, ReduceOp::kAverage, rows / 3, 5, {}, random),
           reducescatter_tensor(size, Dtype::kInt32, ReduceOp::kSum, 3, 11, {}, random),
           reducescatter_tensor(size, Dtype::kFloat64, ReduceOp::kAverage, size + 1, 1, {size - 1},
                                random)});
    }
    // An absent owner of a world of one would want nothing.
    check_stepped(size, buckets, 8);
  }
}

constexpr ReduceOp kElementOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                    ReduceOp::kMax, ReduceOp::kProduct};

TEST_CASE("backend: an absent rank counts as zeros and gets nothing") {
  std::mt19937 random(9);
  for (const int size : {1, 2, 3, 5}) {
    std::vector<Bucket> buckets;
    for (const std::size_t bytes : boundary_sizes(size)) {
      const ReduceOp op = kElementOps[random() % std::size(kElementOps)];
      const int someone = static_cast<int>(random() % static_cast<unsigned>(size));
      buckets.push_back(
          {allreduce_tensor(size, Dtype::kFloat32, op, bytes / 4, {someone}, random),
           allreduce_tensor(size, Dtype::kInt16, op, 33, {}, random),
           allreduce_tensor(size, Dtype::kBfloat16, op, bytes / 20, {0, size - 1}, random)});
    }
    for (const ReduceOp op : kElementOps) {
      buckets.push_back({allreduce_tensor(size, Dtype::kFloat64, op, 100, {size - 1}, random)});
      buckets.push_back({allreduce_tensor(size, Dtype::kFloat16, op, 70'000, {0}, random)});
    }
    check_stepped(size, buckets, 10);
  }
}

// Buckets of all kinds in random order: cells that one kind used are used again by the next.
std::vector<Bucket> mixed_buckets(int size, int count, std::mt19937& random) {
  std::vector<Bucket> buckets;
  const std::size_t cell = kBlockBytes;
  for (int i = 0; i < count; ++i) {
    const std::size_t bytes = random() % 3 == 0 ? random() % (3 * cell) : random() % 5000;
    const auto rows = static_cast<std::int64_t>(bytes) / 8;
    const int someone = static_cast<int>(random() % static_cast<unsigned>(size));
    std::set<int> absent;
    if (random() % 2 == 0) absent.insert(someone);
    switch (random() % 6) {
      case 0:
        buckets.push_back({broadcast_tensor(size, someone, bytes, random)});
        break;
      case 1: {
        std::vector<std::int64_t> uneven(size, 2);
        uneven[someone] = rows;
        buckets.push_back({allgather_tensor(uneven, Dtype::kInt64, 1, random)});
        break;
      }
      case 2:
        buckets.push_back(
            {alltoall_tensor(size, random_splits(size, rows, random), Dtype::kInt32, 1, random)});
        break;
      case 3:
        buckets.push_back(
            {reducescatter_tensor(size, Dtype::kFloat64, ReduceOp::kSum, rows, 1, absent, random),
             reducescatter_tensor(size, Dtype::kInt8, ReduceOp::kMax, 3, 1, {}, random)});
        break;
      case 4:
        buckets.push_back(
            {orthogonal_adasum_tensor(size, Dtype::kFloat32, bytes / 4, absent, random),
             orthogonal_adasum_tensor(size, Dtype::kBfloat16, 100, {}, random)});
        break;
      default:
        buckets.push_back(
            {allreduce_tensor(size, Dtype::kFloat64, ReduceOp::kAverage, bytes / 8, absent, random),
             allreduce_tensor(size, Dtype::kFloat32, ReduceOp::kSum, 9, {}, random)});
    }
  }
  return buckets;
}

TEST_CASE("backend: kinds follow each other on the same cells, ranks stepped in any order") {
  std::mt19937 random(11);
  for (int size = 1; size <= 5; ++size) check_stepped(size, mixed_buckets(size, 25, random), 12);
}

TEST_CASE("backend: kinds follow each other, two threads serving each rank") {
  std::mt19937 random(13);
  for (int size = 2; size <= 4; ++size) check_threaded(size, mixed_buckets(size, 25, random));
}

TEST_CASE("backend: Adasum does not run in a bucket with other ops") {
  std::mt19937 random(17);
  DataWorld world(1);
  Bucket bucket{orthogonal_adasum_tensor(1, Dtype::kFloat32, 8, {}, random),
                allreduce_tensor(1, Dtype::kFloat32, ReduceOp::kSum, 8, {}, random)};
  std::vector<Bucket> buckets{bucket};
  wipe(buckets);
  CHECK_THROWS_AS(Runner(*world.peers[0], buckets), Error);
}

TEST_CASE("backend: who gets nothing out of a block does not wait for it") {
  std::mt19937 random(15);
  const int size = 3;
  std::vector<std::int64_t> splits(9, 0);
  splits[0 * size + 1] = 1000;  // rank 0 gives to rank 1 only; nobody gives to rank 2
  DataWorld world(size);
  std::vector<Bucket> buckets{{alltoall_tensor(size, splits, Dtype::kUint8, 1, random)}};
  wipe(buckets);
  Runner runner(*world.peers[2], buckets);
  PeerWait blocked;
  CHECK(runner.advance(blocked));
  Runner taker(*world.peers[1], buckets);
  CHECK(!taker.advance(blocked));
  CHECK(blocked.rank == 0);
}

}  // namespace
}  // namespace hvd
