// Buckets of all kinds in random order over several hosts, against a model of one process: on
// sockets that take a few bytes at a time, by threads, and with connections that break.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>

#include "cluster_world.h"

namespace hvd {
namespace {

using namespace test;

constexpr ReduceOp kElementOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                    ReduceOp::kMax, ReduceOp::kProduct};

class Program {
 public:
  Program(const HostMap& map, std::mt19937& random)
      : map_(map), size_(static_cast<int>(map.rank_count())), random_(random) {}

  std::vector<Bucket> buckets(int count) {
    std::vector<Bucket> result;
    for (int i = 0; i < count; ++i) result.push_back(bucket());
    return result;
  }

 private:
  Bucket bucket() {
    const unsigned kind = random_() % 6;
    const std::size_t most = random_() % 4 == 0 ? 400'000 : 3000;
    Bucket result;
    for (unsigned i = random_() % 4 + 1; i > 0; --i) result.push_back(tensor(kind, most));
    return result;
  }

  Tensor tensor(unsigned kind, std::size_t most) {
    const std::size_t bytes = random_() % most;
    const auto rows = static_cast<std::int64_t>(bytes) / 8;
    const ReduceOp op = kElementOps[random_() % 5];
    std::set<int> absent;
    if (random_() % 8 == 0) absent.insert(any_rank());
    switch (kind) {
      case 0: {
        Tensor tensor = broadcast_tensor(size_, any_rank(), bytes, random_);
        if (!absent.contains(tensor.root)) tensor.absent = absent;
        return tensor;
      }
      case 1: {
        std::vector<std::int64_t> uneven(size_, 2);
        uneven[any_rank()] = rows;
        return allgather_tensor(uneven, Dtype::kInt64, 1, random_);
      }
      case 2:
        return alltoall_tensor(size_, random_splits(size_, rows / size_, random_), Dtype::kInt32, 1,
                               random_);
      case 3:
        return reducescatter_over(map_, size_, Dtype::kFloat64, op, rows, 1, absent, random_);
      case 4:
        return orthogonal_adasum_tensor(size_, Dtype::kFloat32, bytes / 4, absent, random_);
      default:
        return allreduce_over(map_, size_, random_() % 2 == 0 ? Dtype::kFloat16 : Dtype::kInt32, op,
                              bytes / 4, absent, random_,
                              {.prescale = random_() % 3 == 0 ? 1.5 : 1.0, .postscale = 1.0});
    }
  }

  int any_rank() { return static_cast<int>(random_() % static_cast<unsigned>(size_)); }

  const HostMap& map_;
  const int size_;
  std::mt19937& random_;
};

std::vector<int> random_layout(std::mt19937& random) {
  std::vector<int> counts;
  for (unsigned hosts = 2 + random() % 3; hosts > 0; --hosts) {
    counts.push_back(1 + static_cast<int>(random() % 3));
  }
  return counts;
}

int programs() {
  const char* wanted = std::getenv("HOROVOD_TEST_PROGRAMS");
  return wanted == nullptr ? 6 : std::atoi(wanted);
}

TEST_CASE("cluster: random programs on sockets that take a few bytes") {
  std::mt19937 random(21);
  for (int program = 0; program < programs(); ++program) {
    CAPTURE(program);
    const HostMap map = host_map(random_layout(random), random() % 2 == 0);
    check_stepped(map, Program(map, random).buckets(12), random(), 1);
  }
}

TEST_CASE("cluster: random programs, each rank a thread") {
  std::mt19937 random(23);
  for (int program = 0; program < programs(); ++program) {
    CAPTURE(program);
    const HostMap map = host_map(random_layout(random), random() % 2 == 0);
    check_threaded(map, Program(map, random).buckets(20));
  }
}

// What an absent rank sends lies in memory that later chunks use again.
TEST_CASE("cluster: an absent rank that sends more slowly than it receives") {
  std::mt19937 random(29);
  for (const std::vector<int>& counts : {std::vector{1, 1}, {1, 1, 1}, {2, 2}, {1, 2}}) {
    const HostMap map = host_map(counts, false);
    const int size = static_cast<int>(map.rank_count());
    for (int absent = 0; absent < size; ++absent) {
      std::vector<Bucket> buckets{
          {allreduce_over(map, size, Dtype::kInt32, ReduceOp::kSum, 900'000, {absent}, random)}};
      wipe(buckets);
      ClusterWorld world(map, buckets);
      limit_sends(world.links[absent], 1);
      run_stepped(world, random);
      check_results(buckets);
    }
  }
}

TEST_CASE("cluster: many hosts") {
  std::mt19937 random(25);
  const HostMap map = host_map(std::vector<int>(64, 1), false);
  std::vector<Bucket> buckets{
      {allreduce_over(map, 64, Dtype::kFloat32, ReduceOp::kSum, 100, {}, random)},
      {allreduce_over(map, 64, Dtype::kFloat32, ReduceOp::kSum, 70'000, {}, random)},
      {broadcast_tensor(64, 5, 50'000, random)},
      {allgather_tensor(std::vector<std::int64_t>(64, 1001), Dtype::kUint8, 1, random)},
      {alltoall_tensor(64, random_splits(64, 50, random), Dtype::kInt16, 1, random)},
      {reducescatter_over(map, 64, Dtype::kFloat32, ReduceOp::kAverage, 640, 3, {}, random)}};
  check_stepped(map, buckets, 26);
}

// What rank `rank` gets when it goes on as far as it can.
std::optional<int> lost_rank(ClusterRunner& runner) {
  try {
    PeerWait blocked;
    runner.advance(blocked);
  } catch (const LinkLost& error) {
    CHECK(error.code() == ErrorCode::kPeerLost);
    CHECK(!error.reason().empty());
    return error.rank();
  }
  return std::nullopt;
}

TEST_CASE("cluster: a rank whose peer is gone says which") {
  std::mt19937 random(27);
  const HostMap map = host_map({2, 2, 1}, true);  // hosts 0 3 | 1 4 | 2
  std::vector<Bucket> buckets{
      {allreduce_over(map, 5, Dtype::kFloat32, ReduceOp::kSum, 500'000, {}, random)}};
  wipe(buckets);
  ClusterWorld world(map, buckets);
  for (int round = 0; round < 3; ++round) {
    for (auto& runner : world.runners) {
      PeerWait blocked;
      REQUIRE(!runner->advance(blocked));
    }
  }
  world.runners[1].reset();
  for (int round = 0; round < 100; ++round) {  // what rank 1 had sent comes first
    PeerWait blocked;
    if (const auto lost = lost_rank(*world.runners[0])) {
      CHECK(*lost == 1);
      return;
    }
    try {
      world.runners[2]->advance(blocked);
      world.runners[3]->advance(blocked);
    } catch (const LinkLost& error) {
      CHECK(error.rank() == 1);
    }
  }
  FAIL("rank 0 waits for ever");
}

}  // namespace
}  // namespace hvd
