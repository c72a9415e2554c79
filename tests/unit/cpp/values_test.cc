#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <vector>

#include "runtime/debug_checks.h"

namespace hvd::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename Number>
std::span<const std::byte> bytes_of(const std::vector<Number>& numbers) {
  return std::as_bytes(std::span(numbers));
}

TEST_CASE("the first number that is not finite is found, in every floating-point dtype") {
  const std::vector<float> floats{0, -1e38F, 1e-45F, -std::numeric_limits<float>::infinity()};
  CHECK(first_not_finite(bytes_of(floats), Dtype::kFloat32) == 3);
  const std::vector<double> doubles{1e308, kNan, kInfinity};
  CHECK(first_not_finite(bytes_of(doubles), Dtype::kFloat64) == 1);
  // The largest half, then infinity; 0x7c00 as bfloat16 is a large number.
  const std::vector<std::uint16_t> halves{0x7bff, 0xfbff, 0x7c00, 0xfe00};
  CHECK(first_not_finite(bytes_of(halves), Dtype::kFloat16) == 2);
  CHECK(!first_not_finite(bytes_of(halves), Dtype::kBfloat16));
  const std::vector<std::uint16_t> brains{0x7f7f, 0xff80};
  CHECK(first_not_finite(bytes_of(brains), Dtype::kBfloat16) == 1);
  CHECK(!first_not_finite(bytes_of(floats), Dtype::kInt32));
  CHECK(!first_not_finite({}, Dtype::kFloat32));
}

TEST_CASE("an element is named with its position in the shape") {
  const std::vector<float> floats{1,
                                  static_cast<float>(kNan),
                                  std::numeric_limits<float>::infinity(),
                                  1,
                                  1,
                                  -std::numeric_limits<float>::infinity()};
  const std::array<std::int64_t, 2> shape{2, 3};
  const auto describe = [&](std::size_t index) {
    return describe_element(bytes_of(floats), Dtype::kFloat32, shape, index);
  };
  CHECK(describe(1) == "nan at [0, 1]");
  CHECK(describe(2) == "inf at [0, 2]");
  CHECK(describe(5) == "-inf at [1, 2]");
  CHECK(describe_element(bytes_of(floats), Dtype::kFloat32, {}, 1) == "nan at []");
}

TEST_CASE("whose result is another one than most ranks'") {
  using Hashes = std::vector<std::uint64_t>;
  CHECK(outliers(Hashes{7, 7, 7}).empty());
  CHECK(outliers(Hashes{7, 8, 7}) == std::vector{1});
  CHECK(outliers(Hashes{8, 7, 7, 9}) == std::vector{0, 3});
  CHECK(outliers(Hashes{7, 8}) == std::vector{1});
}

}  // namespace
}  // namespace hvd::test
