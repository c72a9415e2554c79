// Buckets over several hosts, all in one process: stepped in random order on one thread.
#include <doctest/doctest.h>

#include <iterator>

#include "cluster_world.h"

namespace hvd {
namespace {

using namespace test;

const std::vector<std::vector<int>> kLayouts{{1, 1},    {2, 2},       {3, 1},
                                             {1, 2, 3}, {2, 2, 2, 2}, {1, 1, 1, 1, 1, 1, 1, 1}};

int size_of_layout(const std::vector<int>& counts) {
  int size = 0;
  for (const int count : counts) size += count;
  return size;
}

template <typename Check>
void for_each_layout(Check&& check) {
  for (const auto& counts : kLayouts) {
    for (const bool is_dealt : {false, true}) {
      const HostMap map = host_map(counts, is_dealt);
      CAPTURE(counts.size());
      CAPTURE(is_dealt);
      check(map, size_of_layout(counts));
    }
  }
}

constexpr std::size_t kSizes[] = {0, 1, 15, 1000, 20'001, 70'000, 300'001};

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
        buckets.push_back({allreduce_over(map, size, type, op, 90'001, {}, random)});
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

}  // namespace
}  // namespace hvd
