#include "backend/device_capabilities.h"

#include <doctest/doctest.h>

#include "backend/nccl_launch.h"
#include "core/text.h"

namespace hvd::test {
namespace {

const std::vector<std::string> kNames{"rank 0", "rank 1", "rank 2"};

DeviceCapabilities capabilities(unsigned char gpu, int version = 23203) {
  DeviceCapabilities own{.nccl_version = version};
  own.uuid.bytes[0] = gpu;
  return own;
}

TEST_CASE("ranks with a GPU each and the same NCCL can use it") {
  const std::vector<DeviceCapabilities> ranks{capabilities(1), capabilities(2), capabilities(3)};
  CHECK(nccl_obstacle(ranks, kNames) == std::nullopt);
  CHECK(shared_gpus(ranks, kNames).empty());
}

TEST_CASE("an obstacle names the ranks") {
  std::vector<DeviceCapabilities> ranks{capabilities(1), capabilities(2), capabilities(1)};
  CHECK(nccl_obstacle(ranks, kNames) == "rank 0 and rank 2 share one GPU, which NCCL refuses");
  ranks[1] = capabilities(1);
  CHECK(shared_gpus(ranks, kNames) ==
        std::vector<std::string>{"rank 0, rank 1 and rank 2 share one GPU"});
  ranks = {capabilities(1), capabilities(2, 23201), capabilities(3)};
  CHECK(nccl_obstacle(ranks, kNames) == "rank 1 has NCCL 23201, rank 0 has 23203");
  ranks[2].nccl_version = 0;
  ranks[2].problem = "NCCL is not installed";
  CHECK(nccl_obstacle(ranks, kNames) == "rank 2: NCCL is not installed");
}

TEST_CASE("NCCL runs ranks on one GPU where it takes them for ranks of two hosts, or may") {
  std::vector<DeviceCapabilities> ranks{capabilities(1, 22809), capabilities(1, 22809)};
  ranks[1].nccl_host = 7;
  CHECK(nccl_obstacle(ranks, kNames) == std::nullopt);
  CHECK(shared_gpus(ranks, kNames).size() == 1);  // a user may still not know
  ranks[0].nccl_host = 7;
  CHECK(nccl_obstacle(ranks, kNames).has_value());
  for (DeviceCapabilities& each : ranks) each.may_share_gpu = true;
  CHECK(nccl_obstacle(ranks, kNames).has_value());  // this NCCL cannot
  for (DeviceCapabilities& each : ranks) each.nccl_version = 23004;
  CHECK(nccl_obstacle(ranks, kNames) == std::nullopt);
  ranks[1].may_share_gpu = false;
  CHECK(nccl_obstacle(ranks, kNames).has_value());
}

TEST_CASE("what one rank wants holds for all") {
  std::vector<DeviceCapabilities> ranks{capabilities(1), capabilities(2)};
  CHECK(common_route(ranks, Kind::kAllreduce) == DeviceRoute::kAny);
  ranks[1].routes[static_cast<std::size_t>(Kind::kAllreduce)] = DeviceRoute::kNccl;
  CHECK(common_route(ranks, Kind::kAllreduce) == DeviceRoute::kNccl);
  ranks[0].routes[static_cast<std::size_t>(Kind::kAllreduce)] = DeviceRoute::kHost;
  CHECK(common_route(ranks, Kind::kAllreduce) == DeviceRoute::kHost);
  CHECK(common_route(ranks, Kind::kBroadcast) == DeviceRoute::kAny);
  ranks[0].streams = 4;
  ranks[1].streams = 2;
  CHECK(common_streams(ranks) == 2);
}

Request reduction(Dtype dtype, ReduceOp op, double prescale = 1.0, double postscale = 1.0) {
  Request request;
  request.dtype = dtype;
  request.op = op;
  request.prescale = prescale;
  request.postscale = postscale;
  return request;
}

TEST_CASE("NCCL gets what it does as the engine promises") {
  CHECK(nccl_runs(reduction(Dtype::kFloat32, ReduceOp::kAverage), 3));
  CHECK(nccl_runs(reduction(Dtype::kBfloat16, ReduceOp::kSum, 0.5, 4.0), 3));
  CHECK(nccl_runs(reduction(Dtype::kFloat64, ReduceOp::kProduct), 3));
  CHECK(nccl_runs(reduction(Dtype::kInt64, ReduceOp::kMin), 3));
  CHECK(nccl_runs(reduction(Dtype::kBool, ReduceOp::kSum), 3));
  CHECK(!nccl_runs(reduction(Dtype::kInt16, ReduceOp::kSum), 3));
  CHECK(!nccl_runs(reduction(Dtype::kInt32, ReduceOp::kAverage), 3));
  CHECK(!nccl_runs(reduction(Dtype::kInt32, ReduceOp::kSum, 2.0, 0.5), 3));
  CHECK(nccl_runs(reduction(Dtype::kFloat32, ReduceOp::kMax, 2.0), 3));
  CHECK(!nccl_runs(reduction(Dtype::kFloat32, ReduceOp::kAdasum), 2));
  CHECK(nccl_runs(reduction(Dtype::kFloat16, ReduceOp::kSum, 1e-6), 2));
  Request moved = reduction(Dtype::kInt16, ReduceOp::kSum);
  moved.kind = Kind::kBroadcast;
  CHECK(nccl_runs(moved, 2));
}

}  // namespace
}  // namespace hvd::test
