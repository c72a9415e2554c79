// Buckets over several hosts, all in one process: stepped in random order on one thread.
#include <doctest/doctest.h>

#include <iterator>

#include "adasum_reference.h"
#include "cluster_world.h"

namespace hvd {
namespace {

using namespace test;

struct Layout {
  std::vector<int> counts;
  bool is_dealt = false;
  int least_channels = 1;
};

const std::vector<Layout> kLayouts{{{1, 1}},
                                   {{2, 2}},
                                   {{2, 2}, true},
                                   {{3, 1}, true},
                                   {{1, 2, 3}},
                                   {{2, 2, 2, 2}},
                                   {{1, 2, 3}, true},
                                   {{1, 1}, false, 3},
                                   {{1, 2, 3}, true, 8},
                                   {{1, 1, 1, 1, 1, 1, 1, 1}}};

template <typename Check>
void for_each_layout(Check&& check) {
  for (const Layout& layout : kLayouts) {
    HostMap map = host_map(layout.counts, layout.is_dealt);
    map.least_channels = layout.least_channels;
    CAPTURE(map.host_count());
    CAPTURE(layout.is_dealt);
    CAPTURE(layout.least_channels);
    check(map, static_cast<int>(map.rank_count()));
  }
}

// Of three channels, the last one has the longest part of 140'002 numbers in the last chunk.
constexpr std::size_t kSizes[] = {0, 1, 15, 1000, 20'001, 70'000, 140'002, 200'001};

constexpr ReduceOp kElementOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                    ReduceOp::kMax, ReduceOp::kProduct};

TEST_CASE("cluster: allreduce, all dtypes and ops") {
  std::mt19937 random(1);
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
      for (const ReduceOp op : kElementOps) {
        const auto type = static_cast<Dtype>(dtype);
        if (unsupported_reason({.dtype = type, .op = op, .divisor = size}) != nullptr) continue;
        buckets.push_back({allreduce_over(map, size, type, op, 77, {}, random)});
        buckets.push_back({allreduce_over(map, size, type, op, 20'001, {}, random)});
      }
    }
    check_stepped(map, buckets, 2);
  });
}

TEST_CASE("cluster: allreduce of any size, fused with others") {
  std::mt19937 random(3);
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const std::size_t count : kSizes) {
      buckets.push_back(
          {allreduce_over(map, size, Dtype::kFloat32, ReduceOp::kSum, count, {}, random)});
      buckets.push_back(
          {allreduce_over(map, size, Dtype::kFloat16, ReduceOp::kAverage, count / 3, {}, random),
           allreduce_over(map, size, Dtype::kInt64, ReduceOp::kMax, 1, {}, random),
           allreduce_over(map, size, Dtype::kUint8, ReduceOp::kSum, count, {}, random),
           allreduce_over(map, size, Dtype::kFloat64, ReduceOp::kSum, 0, {}, random),
           allreduce_over(map, size, Dtype::kFloat64, ReduceOp::kSum, count / 2, {}, random)});
    }
    check_stepped(map, buckets, 4);
  });
}

TEST_CASE("cluster: broadcast from every root") {
  std::mt19937 random(5);
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const std::size_t bytes : kSizes) {
      Bucket bucket;
      for (int root = 0; root < size; ++root) {
        buckets.push_back({broadcast_tensor(size, root, bytes, random)});
        bucket.push_back(broadcast_tensor(size, root, bytes / 2, random));
      }
      buckets.push_back(bucket);
    }
    check_stepped(map, buckets, 6);
  });
}

TEST_CASE("cluster: factors before and after, integers cut off where one host would") {
  std::mt19937 random(7);
  constexpr Factors kFactors[] = {{0.5, 1.0}, {1.0, 0.3}, {-1.7, 2.5}};
  constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kInt32, Dtype::kUint8};
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const Factors factors : kFactors) {
      for (const Dtype dtype : kDtypes) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
          buckets.push_back({allreduce_over(map, size, dtype, op, 77, {}, random, factors)});
          Tensor large = allreduce_over(map, size, dtype, op, 70'001, {}, random, factors);
          // The order does not matter to integers, so here one host is the model.
          const bool is_integer = dtype == Dtype::kInt32 || dtype == Dtype::kUint8;
          if (is_integer) REQUIRE(large.expected[0] == reduced(large));
          buckets.push_back({std::move(large)});
        }
      }
    }
    check_stepped(map, buckets, 8);
  });
}

std::vector<std::int64_t> uneven_rows(int size, std::int64_t rows, std::mt19937& random) {
  std::vector<std::int64_t> uneven;
  for (int rank = 0; rank < size; ++rank) {
    uneven.push_back(random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random()) % (rows + 1));
  }
  return uneven;
}

TEST_CASE("cluster: allgather of equal, uneven and empty rows") {
  std::mt19937 random(9);
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const std::size_t bytes : kSizes) {
      const auto rows = static_cast<std::int64_t>(bytes);
      const std::vector<std::int64_t> equal(size, rows);
      buckets.push_back({allgather_tensor(equal, Dtype::kUint8, 1, random)});
      buckets.push_back({allgather_tensor(uneven_rows(size, rows, random), Dtype::kInt8, 1, random),
                         allgather_tensor(uneven_rows(size, 9, random), Dtype::kFloat64, 3, random),
                         allgather_tensor(equal, Dtype::kFloat16, 0, random)});
    }
    check_stepped(map, buckets, 10);
  });
}

TEST_CASE("cluster: alltoall of equal, uneven and empty splits") {
  std::mt19937 random(11);
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    const std::size_t pairs = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
    for (const std::size_t bytes : kSizes) {
      const auto rows = static_cast<std::int64_t>(bytes) / 4;
      buckets.push_back({alltoall_tensor(size, std::vector<std::int64_t>(pairs, rows),
                                         Dtype::kUint8, 1, random)});
      buckets.push_back(
          {alltoall_tensor(size, random_splits(size, rows, random), Dtype::kInt16, 3, random),
           alltoall_tensor(size, random_splits(size, 5, random), Dtype::kFloat64, 7, random)});
    }
    check_stepped(map, buckets, 12);
  });
}

TEST_CASE("cluster: an absent rank gives zeros and gets nothing, but passes on") {
  std::mt19937 random(13);
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const std::size_t bytes : kSizes) {
      const ReduceOp op = kElementOps[random() % std::size(kElementOps)];
      const int absent = static_cast<int>(random() % static_cast<unsigned>(size));
      const int root = (absent + 1) % size;
      buckets.push_back(
          {allreduce_over(map, size, Dtype::kFloat32, op, bytes, {absent}, random),
           allreduce_over(map, size, Dtype::kInt16, op, 33, {}, random, {2.0, 0.5}),
           allreduce_over(map, size, Dtype::kBfloat16, op, bytes / 5, {0, size - 1}, random)});
      Tensor broadcast = broadcast_tensor(size, root, bytes, random);
      broadcast.absent = {absent};
      std::vector<std::int64_t> rows(size, static_cast<std::int64_t>(bytes));
      rows[absent] = 0;
      Tensor gather = allgather_tensor(rows, Dtype::kUint8, 1, random);
      gather.absent = {absent};
      std::vector<std::int64_t> splits = random_splits(size, rows[root] / 2, random);
      for (int taker = 0; taker < size; ++taker) splits[absent * size + taker] = 0;
      Tensor all = alltoall_tensor(size, splits, Dtype::kUint8, 1, random);
      all.absent = {absent};
      buckets.push_back({all, all});
      buckets.push_back({broadcast, broadcast});
      buckets.push_back({gather, gather});
    }
    check_stepped(map, buckets, 14);
  });
}

TEST_CASE("cluster: reducescatter gives the bits of an allreduce") {
  std::mt19937 random(15);
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const std::size_t bytes : kSizes) {
      const auto rows = static_cast<std::int64_t>(bytes);
      const int absent = static_cast<int>(random() % static_cast<unsigned>(size));
      buckets.push_back(
          {reducescatter_over(map, size, Dtype::kFloat32, ReduceOp::kSum, rows, 1, {}, random)});
      buckets.push_back(
          {reducescatter_over(map, size, Dtype::kFloat16, ReduceOp::kAverage, rows / 5, 3, {},
                              random),
           reducescatter_over(map, size, Dtype::kInt32, ReduceOp::kMax, 3, 11, {}, random),
           reducescatter_over(map, size, Dtype::kFloat64, ReduceOp::kAverage, size + 1, 1, {absent},
                              random),
           reducescatter_over(map, size, Dtype::kUint8, ReduceOp::kSum, rows, 2, {absent},
                              random)});
    }
    check_stepped(map, buckets, 16);
  });
}

TEST_CASE("cluster: Adasum of orthogonal tensors is their sum") {
  std::mt19937 random(17);
  for_each_layout([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const std::size_t count : kSizes) {
      const int absent = static_cast<int>(random() % static_cast<unsigned>(size));
      buckets.push_back(
          {orthogonal_adasum_tensor(size, Dtype::kFloat32, count, {}, random),
           orthogonal_adasum_tensor(size, Dtype::kBfloat16, count / 7, {absent}, random),
           orthogonal_adasum_tensor(size, Dtype::kFloat64, 0, {}, random)});
    }
    buckets.push_back({orthogonal_adasum_tensor(size, Dtype::kFloat64, 0, {}, random)});
    check_stepped(map, buckets, 18);
  });
}

float float_at(const Bytes& bytes, std::size_t index) {
  float value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

TEST_CASE("cluster: Adasum is what its definition says, with the same bits everywhere") {
  constexpr std::size_t kCount = 5000;
  std::mt19937 random(19);
  for_each_layout([&](const HostMap& map, int size) {
    Tensor tensor = allreduce_tensor(size, Dtype::kFloat32, ReduceOp::kSum, kCount, {}, random);
    tensor.request.op = ReduceOp::kAdasum;
    tensor.request.postscale = 0.5;
    std::vector<Bucket> buckets{{tensor}};
    wipe(buckets);
    ClusterWorld world(map, buckets);
    run_stepped(world, random);
    std::vector<Values> vectors(size, Values(kCount));
    for (int rank = 0; rank < size; ++rank) {
      for (std::size_t i = 0; i < kCount; ++i) vectors[rank][i] = float_at(tensor.in[rank], i);
    }
    const Values wanted = adasum_reference(vectors);
    const Tensor& done = buckets[0][0];
    for (int rank = 1; rank < size; ++rank) REQUIRE(done.out[rank] == done.out[0]);
    for (std::size_t i = 0; i < kCount; ++i) {
      REQUIRE(float_at(done.out[0], i) == doctest::Approx(0.5 * wanted[i]).epsilon(1e-4));
    }
  });
}

}  // namespace
}  // namespace hvd
