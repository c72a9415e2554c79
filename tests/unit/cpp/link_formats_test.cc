// Which format a reduction gets between hosts, and which ones are refused.
#include "runtime/link_formats.h"

#include <doctest/doctest.h>

#include "contains.h"
#include "runtime/submission.h"
#include "world_of_threads.h"

namespace hvd {
namespace {

namespace link_formats_tests {

using test::contains;

Request request_for(LinkFormat format, Dtype dtype = Dtype::kFloat32,
                    ReduceOp op = ReduceOp::kAverage, std::int64_t elements = 4096) {
  Request request = test::float_request(Kind::kAllreduce, {elements});
  request.dtype = dtype;
  request.op = op;
  request.format = format;
  return request;
}

TEST_CASE("link formats: the setting holds for what asks for none and can travel so") {
  const LinkFormats formats{.as_set = LinkFormat::kFp8};
  const auto format_of = [&](const Request& request) { return formats.of(request, "x", true); };
  CHECK(format_of(request_for(LinkFormat::kAsSet)) == LinkFormat::kFp8);
  CHECK(format_of(request_for(LinkFormat::kAsSet, Dtype::kBfloat16)) == LinkFormat::kFp8);
  CHECK(format_of(request_for(LinkFormat::kInt8)) == LinkFormat::kInt8);
  CHECK(format_of(request_for(LinkFormat::kExact)) == LinkFormat::kExact);
  CHECK(format_of(request_for(LinkFormat::kAsSet, Dtype::kInt64)) == LinkFormat::kExact);
  CHECK(format_of(request_for(LinkFormat::kAsSet, Dtype::kFloat64)) == LinkFormat::kExact);
  CHECK(format_of(request_for(LinkFormat::kAsSet, Dtype::kFloat32, ReduceOp::kMax)) ==
        LinkFormat::kExact);
  CHECK(formats.of(request_for(LinkFormat::kAsSet), "x", false) == LinkFormat::kExact);
  Request on_gpu = request_for(LinkFormat::kAsSet);
  on_gpu.memory = Memory::kCuda;
  CHECK(format_of(on_gpu) == LinkFormat::kExact);
  Request scattered = request_for(LinkFormat::kAsSet);
  scattered.kind = Kind::kReducescatter;
  CHECK(format_of(scattered) == LinkFormat::kExact);
}

TEST_CASE("link formats: small tensors are exact") {
  const LinkFormats formats{.least_elements = 100};
  const auto format_of = [&](std::int64_t elements) {
    return formats.of(request_for(LinkFormat::kInt8, Dtype::kFloat32, ReduceOp::kSum, elements),
                      "x", true);
  };
  CHECK(format_of(99) == LinkFormat::kExact);
  CHECK(format_of(100) == LinkFormat::kInt8);
}

TEST_CASE("link formats: tensors are exact whose names have one of the parts") {
  const LinkFormats formats{.exact_parts = {"bias", ".bn", "Embed"}};
  for (const char* name : {"allreduce.layer.bias", "allreduce.layer.in_proj_BIAS", "embed", "a.bn1",
                           "allreduce.Embeddings.weight"}) {
    CAPTURE(std::string(name));
    CHECK(formats.of(request_for(LinkFormat::kInt8), name, true) == LinkFormat::kExact);
    CHECK(formats.is_exact(name, 1U << 20));
  }
  for (const char* name : {"", "allreduce.layer.weight", "bia", "subnet", "embe", ".b.n"}) {
    CAPTURE(std::string(name));
    CHECK(formats.of(request_for(LinkFormat::kInt8), name, true) == LinkFormat::kInt8);
    CHECK(!formats.is_exact(name, 1U << 20));
  }
  CHECK(formats.is_exact("", 1023));
}

TEST_CASE("link formats: what is tuned is what the setting would be for") {
  const LinkFormats formats{.as_set = LinkFormat::kTuned, .exact_parts = {"bias"}};
  const auto format_of = [&](const Request& request, const char* name = "x") {
    return formats.of(request, name, true);
  };
  CHECK(format_of(request_for(LinkFormat::kAsSet)) == LinkFormat::kTuned);
  CHECK(format_of(request_for(LinkFormat::kInt4)) == LinkFormat::kInt4);
  CHECK(format_of(request_for(LinkFormat::kMxfp8)) == LinkFormat::kMxfp8);
  CHECK(format_of(request_for(LinkFormat::kExact)) == LinkFormat::kExact);
  CHECK(format_of(request_for(LinkFormat::kAsSet), "bias") == LinkFormat::kExact);
  CHECK(format_of(request_for(LinkFormat::kAsSet, Dtype::kInt64)) == LinkFormat::kExact);
  CHECK(format_of(request_for(LinkFormat::kAsSet, Dtype::kFloat32, ReduceOp::kSum, 1023)) ==
        LinkFormat::kExact);
  CHECK(formats.of(request_for(LinkFormat::kAsSet), "x", false) == LinkFormat::kExact);
}

TEST_CASE("link formats: a bucket decides what is tuned, and nothing else") {
  for (const LinkFormat tuned : {LinkFormat::kExact, LinkFormat::kFp8, LinkFormat::kMxfp8}) {
    CHECK(decided(LinkFormat::kTuned, tuned) == tuned);
    CHECK(decided(LinkFormat::kExact, tuned) == LinkFormat::kExact);
    CHECK(decided(LinkFormat::kInt4, tuned) == LinkFormat::kInt4);
  }
}

std::string refusal(const Request& request, bool is_engines = true, int device = kHostDevice) {
  const Tensor tensor{.device = device};
  const Submission submission{
      .name = {}, .requests = {&request, 1}, .tensors = {&tensor, 1}, .splits = {}};
  return refusal_of(submission, {0, 1}, is_engines).value_or("");
}

TEST_CASE("link formats: what cannot be done is refused by name") {
  CHECK(refusal(request_for(LinkFormat::kInt8)).empty());
  CHECK(contains(refusal(request_for(LinkFormat::kInt8, Dtype::kInt64)),
                 "compression=int8 needs float32, float16 or bfloat16, found int64"));
  CHECK(contains(refusal(request_for(LinkFormat::kFp8, Dtype::kFloat64)),
                 "compression=fp8 needs float32, float16 or bfloat16, found float64"));
  CHECK(contains(refusal(request_for(LinkFormat::kMxfp8, Dtype::kFloat64)),
                 "compression=mxfp8 needs float32, float16 or bfloat16, found float64"));
  CHECK(contains(refusal(request_for(LinkFormat::kInt8, Dtype::kFloat32, ReduceOp::kMin)),
                 "compression=int8 needs op Sum or Average, found Min"));
  CHECK(contains(refusal(request_for(LinkFormat::kInt8), false),
                 "needs the native data plane, found another"));
  CHECK(contains(refusal(request_for(LinkFormat::kInt8), true, 0),
                 "needs a tensor in host memory, found"));
  CHECK(contains(refusal(request_for(static_cast<LinkFormat>(9))), "unknown compression"));
  CHECK(contains(refusal(request_for(LinkFormat::kTuned, Dtype::kInt64)),
                 "compression=tuned needs float32, float16 or bfloat16, found int64"));
}

}  // namespace link_formats_tests

}  // namespace
}  // namespace hvd
