#include "control/request.h"

#include <doctest/doctest.h>

#include <string>

#include "contains.h"
#include "world_of_threads.h"

namespace hvd {
namespace {

std::uint64_t signature(const Request& request) { return signature_of({&request, 1}); }

using test::contains;
using test::float_request;

Request from_rank(Request request, int rank) {
  request.rank = rank;
  return request;
}

void check_mismatch(const Request& first, const Request& other, const std::string& part) {
  CHECK(signature(first) != signature(other));
  const auto text = mismatch(from_rank(first, 0), from_rank(other, 3));
  REQUIRE(text);
  CAPTURE(*text);
  CHECK(contains(*text, part));
  CHECK(contains(*text, "rank 3 sent"));
  CHECK(contains(*text, "rank 0 sent"));
}

TEST_CASE("equal requests agree, whoever sends them") {
  const Request request = float_request(Kind::kAllreduce, {4, 8});
  CHECK(signature(from_rank(request, 0)) == signature(from_rank(request, 1)));
  CHECK(!mismatch(request, from_rank(request, 1)));
}

TEST_CASE("every way to disagree is told apart") {
  const Request base = float_request(Kind::kAllreduce, {4, 8});
  Request other = base;
  SUBCASE("shape") {
    other.dims[1] = 7;
    check_mismatch(base, other, "Mismatched ALLREDUCE tensor shapes: rank 3 sent [4, 7] float32");
  }
  SUBCASE("number of dimensions") {
    other.dims_count = 1;
    check_mismatch(base, other, "rank 3 sent [4] float32, rank 0 sent [4, 8] float32");
  }
  SUBCASE("dtype") {
    other.dtype = Dtype::kInt64;
    check_mismatch(base, other, "Mismatched data types: rank 3 sent [4, 8] int64");
  }
  SUBCASE("operation") {
    other.kind = Kind::kBroadcast;
    check_mismatch(base, other, "Mismatched operations: rank 3 sent BROADCAST");
  }
  SUBCASE("compression") {
    other.format = LinkFormat::kInt8;
    Request exact = base;
    exact.format = LinkFormat::kExact;
    check_mismatch(exact, other,
                   "Mismatched compression: rank 3 sent int8, rank 0 sent none; compression, ");
  }
  SUBCASE("reduce op") {
    other.op = ReduceOp::kMax;
    check_mismatch(base, other, "Mismatched reduction operation: rank 3 sent Max");
  }
  SUBCASE("factors") {
    other.prescale = 0.5;
    check_mismatch(base, other, "Mismatched prescale and/or postscale factors");
  }
}

TEST_CASE("broadcast roots must agree") {
  Request base = float_request(Kind::kBroadcast, {4});
  Request other = base;
  other.root = 1;
  check_mismatch(base, other, "Mismatched BROADCAST root ranks: rank 3 sent root rank 1");
}

TEST_CASE("an allgather may differ in its first dimension only") {
  const Request base = float_request(Kind::kAllgather, {4, 8});
  Request longer = base;
  longer.dims[0] = 9;
  CHECK(signature(base) == signature(longer));
  CHECK(!mismatch(base, longer));
  Request wider = base;
  wider.dims[1] = 9;
  check_mismatch(base, wider, "all dimensions but the first must match");
}

TEST_CASE("an allgather needs a first dimension") {
  CHECK(scalar_failure(float_request(Kind::kAllgather, {})));
  CHECK(!scalar_failure(float_request(Kind::kAllgather, {0})));
  CHECK(!scalar_failure(float_request(Kind::kAllreduce, {})));
}

}  // namespace
}  // namespace hvd
