#include "backend/device_staging.h"

#include <doctest/doctest.h>

namespace hvd::test {
namespace {

std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

Request floats(Kind kind, std::vector<std::int64_t> shape) {
  Request request;
  request.kind = kind;
  request.dims_count = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), request.dims.begin());
  return request;
}

TEST_CASE("tensors that all ranks have alike are cut into passes of equal size") {
  const Request large = floats(Kind::kAllreduce, {100, 10});
  const Request small = floats(Kind::kAllreduce, {5});
  const std::vector<Work> works{
      {.request = &small, .in = at(4096), .out = at(4096), .rows = {}, .splits = {}},
      {.request = &large, .in = at(8192), .out = at(65536), .rows = {}, .splits = {}}};
  const auto passes = plan_passes(Kind::kAllreduce, works, {.rank = 1, .size = 2}, 1024);
  REQUIRE(passes.size() == 4);  // 20 bytes, 4000 bytes in pieces
  CHECK(passes[0].parts.size() == 2);
  CHECK(passes[0].parts[1].in_at == 64);
  CHECK(passes[0].parts[1].from_bytes == 960);
  CHECK(passes[0].parts[1].request.dims[0] == 240);
  CHECK(passes[1].parts[0].from == at(8192 + 960));
  CHECK(passes[1].parts[0].to == at(65536 + 960));
  std::size_t bytes = 0;
  for (const StagedPass& pass : passes) {
    CHECK(pass.size_bytes <= 1024);
    for (const StagedPart& part : pass.parts) bytes += part.to_bytes;
  }
  CHECK(bytes == 4020);
}

TEST_CASE("tensors of Adasum stay whole, and passes are those of all ranks") {
  Request large = floats(Kind::kAllreduce, {400});
  Request small = floats(Kind::kAllreduce, {100});
  large.op = small.op = ReduceOp::kAdasum;
  for (const bool is_absent : {false, true}) {
    std::vector<Work> works;
    for (const Request* request : {&small, &small, &large, &small, &small, &small}) {
      works.push_back({.request = request, .rows = {}, .splits = {}});
      if (!is_absent) works.back().in = works.back().out = at(4096);
    }
    const auto passes = plan_passes(Kind::kAllreduce, works, {.rank = 1, .size = 2}, 1024);
    REQUIRE(passes.size() == 4);
    CHECK(passes[0].parts.size() == 2);
    CHECK(passes[1].parts.size() == 1);
    CHECK(passes[1].parts[0].request.dims[0] == 400);
    CHECK(passes[2].parts.size() == 2);
    CHECK(passes[3].parts.size() == 1);
  }
}

TEST_CASE("of a broadcast only the root's bytes go in, and not back where they are") {
  Request request = floats(Kind::kBroadcast, {4});
  std::vector<Work> works{
      {.request = &request, .in = at(4096), .out = at(4096), .root = 1, .rows = {}, .splits = {}}};
  const StagedPart root =
      plan_passes(Kind::kBroadcast, works, {.rank = 1, .size = 2}, 1024)[0].parts[0];
  CHECK(root.from_bytes == 16);
  CHECK(root.to_bytes == 0);
  const StagedPart other =
      plan_passes(Kind::kBroadcast, works, {.rank = 0, .size = 2}, 1024)[0].parts[0];
  CHECK(other.from_bytes == 0);
  CHECK(other.to_bytes == 16);
  works[0].out = at(8192);
  CHECK(plan_passes(Kind::kBroadcast, works, {.rank = 1, .size = 2}, 1024)[0].parts[0].to_bytes ==
        16);
}

TEST_CASE("what ranks have differently is one pass, in and out apart") {
  const Request request = floats(Kind::kAllgather, {3, 2});
  const std::vector<Work> works{
      {.request = &request, .in = at(4096), .out = at(8192), .rows = {3, 1}, .splits = {}}};
  const auto passes = plan_passes(Kind::kAllgather, works, {.rank = 0, .size = 2}, 8);
  REQUIRE(passes.size() == 1);
  CHECK(passes[0].parts[0].from_bytes == 24);
  CHECK(passes[0].parts[0].to_bytes == 32);
  CHECK(passes[0].parts[0].out_at == 64);
}

TEST_CASE("tensors without elements need no pass, absent ranks give and take nothing") {
  const Request empty = floats(Kind::kAllreduce, {0});
  const std::vector<Work> none{
      {.request = &empty, .in = at(64), .out = at(64), .rows = {}, .splits = {}}};
  CHECK(plan_passes(Kind::kAllreduce, none, {.rank = 0, .size = 2}, 1024).empty());
  const Request request = floats(Kind::kAllreduce, {4});
  const std::vector<Work> absent{{.request = &request, .rows = {}, .splits = {}}};
  const StagedPart part =
      plan_passes(Kind::kAllreduce, absent, {.rank = 0, .size = 2}, 1024)[0].parts[0];
  CHECK(part.from_bytes == 0);
  CHECK(part.to_bytes == 0);
}

}  // namespace
}  // namespace hvd::test
