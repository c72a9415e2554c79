// Allreduces in low-bit formats over several hosts in one process, against the formats' kernels.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "cluster_world.h"
#include "kernels/low_bit.h"

namespace hvd {
namespace {

namespace cluster_low_bit_tests {

using namespace test;

constexpr LinkFormat kFormats[] = {LinkFormat::kInt8, LinkFormat::kFp8, LinkFormat::kInt4,
                                   LinkFormat::kMxfp8};
constexpr std::size_t kCounts[] = {1, 100, 129, 5000, 70'001, 300'000};

const std::vector<std::vector<int>> kHostSizes{{1, 1}, {2, 2}, {3, 1}, {1, 2, 3}, {2, 2, 2, 2}};

template <typename Check>
void for_each_map(Check&& check) {
  for (const auto& counts : kHostSizes) {
    const HostMap map = host_map(counts, counts.size() == 3);
    CAPTURE(map.host_count());
    check(map, static_cast<int>(map.rank_count()));
  }
}

struct Sums {
  std::vector<Bytes> of_hosts;  // before they are coded
  Bytes code;                   // of the sum over the hosts
};

Sums coded_sums(const Tensor& tensor, const HostMap& map) {
  const Request& request = tensor.request;
  const std::size_t count = request.element_count();
  const Bytes zeros(tensor.in[0].size());
  Sums sums{.of_hosts = {}, .code = Bytes(low_bit_bytes(request.format, count))};
  std::vector<Bytes> codes;
  std::vector<const std::byte*> addends;
  for (const auto& host : map.hosts) {
    std::vector<const std::byte*> sources;
    for (const int rank : host) {
      sources.push_back(tensor.absent.contains(rank) ? zeros.data() : tensor.in[rank].data());
    }
    Bytes& sum = sums.of_hosts.emplace_back(zeros.size());
    reduce({.dtype = request.dtype, .op = ReduceOp::kSum, .prescale = request.prescale}, sources,
           sum.data(), nullptr, count);
    codes.emplace_back(low_bit_bytes(request.format, count));
    const Rounding rounding = tensor.rounding.of(codes.size() - 1);
    encode(request.format, request.dtype, sum.data(), count, codes.back().data(),
           {.rounding = rounding});
  }
  for (const Bytes& code : codes) addends.push_back(code.data());
  add_coded(request.format, addends, count, sums.code.data(),
            {.rounding = tensor.rounding.of(codes.size())});
  return sums;
}

Tensor low_bit_tensor(const HostMap& map, int size, LinkFormat format, std::size_t count,
                      std::mt19937& random, Dtype dtype = Dtype::kFloat32,
                      ReduceOp op = ReduceOp::kSum, std::set<int> absent = {}, Factors factors = {},
                      Rounding rounding = {}) {
  Tensor tensor = allreduce_tensor(size, dtype, op, count, std::move(absent), random);
  tensor.request.prescale = factors.prescale;
  tensor.request.postscale = factors.postscale;
  tensor.request.format = format;
  tensor.rounding = rounding;
  const Sums sums = coded_sums(tensor, map);
  const int divisor = op == ReduceOp::kAverage ? size : 1;
  Bytes result(tensor.in[0].size());
  decode(format, dtype, sums.code.data(), count, result.data(),
         static_cast<float>(factors.postscale / divisor));
  for (Bytes& bytes : tensor.expected) bytes = result;
  return tensor;
}

TEST_CASE("cluster low bits: every rank gets what the kernels give, wherever the tensor is") {
  std::mt19937 random(31);
  for_each_map([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const LinkFormat format : kFormats) {
      for (const std::size_t count : kCounts) {
        const Tensor tensor = low_bit_tensor(map, size, format, count, random);
        // The bits do not depend on the place in a bucket.
        const Tensor exact =
            allreduce_over(map, size, Dtype::kInt16, ReduceOp::kMax, 333, {}, random);
        buckets.push_back({tensor});
        buckets.push_back({exact, tensor, exact});
        buckets.push_back({low_bit_tensor(map, size, LinkFormat::kFp8, 777, random), tensor});
      }
    }
    check_stepped(map, buckets, 32);
  });
}

TEST_CASE("cluster low bits: half precision, averages and factors") {
  std::mt19937 random(33);
  for_each_map([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const LinkFormat format : kFormats) {
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16}) {
        buckets.push_back(
            {low_bit_tensor(map, size, format, 5001, random, dtype, ReduceOp::kAverage),
             low_bit_tensor(map, size, format, 70'001, random, dtype, ReduceOp::kSum, {},
                            {0.5, -0.3})});
      }
    }
    check_stepped(map, buckets, 34);
  });
}

TEST_CASE("cluster low bits: chances depend on the element and the coding host, not on the place") {
  std::mt19937 random(45);
  for_each_map([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const LinkFormat format : kFormats) {
      for (const std::size_t count : kCounts) {
        const Tensor tensor = low_bit_tensor(map, size, format, count, random, Dtype::kFloat32,
                                             ReduceOp::kAverage, {}, {}, {true, random()});
        buckets.push_back({tensor});
        buckets.push_back({low_bit_tensor(map, size, LinkFormat::kFp8, 777, random), tensor});
      }
    }
    check_stepped(map, buckets, 46);
  });
}

TEST_CASE("cluster low bits: exact tensors between the others keep their bits") {
  std::mt19937 random(35);
  for_each_map([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const std::size_t count : kCounts) {
      buckets.push_back(
          {allreduce_over(map, size, Dtype::kFloat64, ReduceOp::kSum, count, {}, random),
           low_bit_tensor(map, size, LinkFormat::kInt8, count, random),
           allreduce_over(map, size, Dtype::kFloat32, ReduceOp::kAverage, count, {}, random),
           allreduce_over(map, size, Dtype::kUint8, ReduceOp::kSum, count, {}, random)});
    }
    check_stepped(map, buckets, 36, 4096);
  });
}

TEST_CASE("cluster low bits: an absent rank gives zeros, and codes for its host") {
  std::mt19937 random(37);
  for_each_map([&](const HostMap& map, int size) {
    std::vector<Bucket> buckets;
    for (const std::size_t count : kCounts) {
      const int absent = static_cast<int>(random() % static_cast<unsigned>(size));
      buckets.push_back(
          {low_bit_tensor(map, size, LinkFormat::kInt8, count, random, Dtype::kFloat32,
                          ReduceOp::kAverage, {absent}),
           allreduce_over(map, size, Dtype::kInt32, ReduceOp::kSum, 99, {absent}, random)});
    }
    check_stepped(map, buckets, 38);
  });
}

TEST_CASE("cluster low bits: ranks as threads, several buckets") {
  std::mt19937 random(39);
  const HostMap map = host_map({2, 2}, false);
  std::vector<Bucket> buckets;
  for (int round = 0; round < 6; ++round) {
    buckets.push_back({low_bit_tensor(map, 4, LinkFormat::kInt8, 200'000, random),
                       low_bit_tensor(map, 4, LinkFormat::kFp8, 3000, random)});
    buckets.push_back({allreduce_over(map, 4, Dtype::kFloat32, ReduceOp::kSum, 9000, {}, random)});
  }
  check_threaded(map, buckets);
}

float float_in(const Bytes& bytes, std::size_t index) {
  float value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

// What the result lacks, in units of the tensor.
std::vector<double> lacks(const Tensor& tensor, const HostMap& map) {
  const std::size_t count = tensor.request.element_count();
  const Sums sums = coded_sums(tensor, map);
  Bytes sent(count * sizeof(float));
  decode(tensor.request.format, Dtype::kFloat32, sums.code.data(), count, sent.data());
  std::vector<double> lacking(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (const Bytes& sum : sums.of_hosts) lacking[i] += double{float_in(sum, i)};
    lacking[i] = (lacking[i] - double{float_in(sent, i)}) / tensor.request.prescale;
  }
  return lacking;
}

TEST_CASE("cluster low bits: the errors of all ranks are what the result lacks") {
  std::mt19937 random(41);
  for_each_map([&](const HostMap& map, int size) {
    for (const LinkFormat format : kFormats) {
      std::vector<Bucket> buckets{
          {low_bit_tensor(map, size, format, 70'001, random, Dtype::kFloat32, ReduceOp::kAverage,
                          {}, {0.25, 3.0}),
           allreduce_over(map, size, Dtype::kFloat32, ReduceOp::kSum, 500, {}, random)}};
      for (Tensor& tensor : buckets[0]) {
        tensor.errors.assign(size, std::vector<float>(tensor.request.element_count(), 7.0F));
      }
      wipe(buckets);
      ClusterWorld world(map, buckets);
      run_stepped(world, random);
      check_results(buckets);
      const std::vector<double> wanted = lacks(buckets[0][0], map);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        double sum = 0;
        for (const auto& errors : buckets[0][0].errors) sum += double{errors[i]};
        REQUIRE(std::fabs(sum - wanted[i]) < 1e-3);
      }
      for (const auto& errors : buckets[0][1].errors) {
        REQUIRE(errors == std::vector<float>(500));
      }
    }
  });
}

TEST_CASE("cluster low bits: NaN and infinity reach all ranks, alone") {
  std::mt19937 random(43);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for_each_map([&](const HostMap& map, int size) {
    for (const LinkFormat format : kFormats) {
      Tensor tensor = low_bit_tensor(map, size, format, 2000, random);
      const auto put = [&](std::size_t index, float value) {
        std::memcpy(tensor.in[0].data() + index * sizeof value, &value, sizeof value);
      };
      put(17, std::nanf(""));
      put(18, -kInfinity);
      std::vector<Bucket> buckets{{tensor}};
      wipe(buckets);
      ClusterWorld world(map, buckets);
      run_stepped(world, random);
      for (const Bytes& out : buckets[0][0].out) {
        REQUIRE(out == buckets[0][0].out[0]);
        REQUIRE(std::isnan(float_in(out, 17)));
        REQUIRE(float_in(out, 18) == -kInfinity);
        for (std::size_t i = 19; i < 2000; ++i) REQUIRE(std::isfinite(float_in(out, i)));
      }
    }
  });
}

}  // namespace cluster_low_bit_tests

}  // namespace
}  // namespace hvd
