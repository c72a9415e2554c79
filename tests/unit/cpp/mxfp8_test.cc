// What is mxfp8's own: the scales of 32 elements each, and specials without a mark.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/kernel_table.h"
#include "low_bit_values.h"

namespace hvd::low_bit_tests {
namespace {

constexpr LinkFormat kMx = LinkFormat::kMxfp8;
constexpr float kMost = 240 * 0x1p120F;
constexpr float kLargestFloat = std::numeric_limits<float>::max();

TEST_CASE("mxfp8: on a link it is four exponents, then the codes of fp8") {
  const float groups[] = {1, 1.625F, 1.75F, 0};
  Floats values(128);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = groups[i / 32];
  const Bytes code = coded(kMx, values);
  REQUIRE(code.size() == 132);
  const std::uint8_t wanted[][4] = {{119, 119, 120, 10}, {0x78, 0x7d, 0x76, 0}};
  for (std::size_t i = 0; i < code.size(); ++i) {
    REQUIRE(std::to_integer<int>(code[i]) == wanted[i < 4 ? 0 : 1][i % 4]);
  }
}

// By the definition of e4m3.
float value_of(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = (code & 7) + (exponent == 0 ? 0 : 8);
  return std::ldexp(static_cast<float>(code < 128 ? mantissa : -mantissa),
                    std::max(exponent, 1) - 10);
}

TEST_CASE("mxfp8: what a code and a scale can say stays as it is") {
  for (int power = -117; power <= 120; ++power) {
    Floats values;
    for (int code = 0; code < 256; ++code) {
      const float value = std::ldexp(value_of(code), power);
      if ((code & 127) < 126 && std::fabs(value) <= kMost) values.push_back(value);
    }
    Floats errors(values.size(), 1);
    REQUIRE(through(kMx, values, errors.data()) == values);
    REQUIRE(errors == Floats(values.size()));
    REQUIRE(by_chance(kMx, values, 3) == values);
  }
}

TEST_CASE("mxfp8: coding again changes nothing") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const Floats once = through(kMx, random_floats(700, random));
    REQUIRE(through(kMx, once) == once);
  }
}

TEST_CASE("mxfp8: the largest element is never cut off") {
  for (std::uint32_t upper = 0; upper < 0x7f80; ++upper) {
    for (const std::uint32_t lower : {0U, 1U, 0xffffU}) {
      const float value = std::bit_cast<float>((upper << 16) | lower);
      CAPTURE(value);
      const float nearest = through(kMx, {value})[0];
      REQUIRE(std::isfinite(nearest));
      REQUIRE(std::fabs(nearest - value) <= bound(kMx, value, value));
      const float chosen = by_chance(kMx, {value}, upper)[0];
      REQUIRE(std::isfinite(chosen));
      REQUIRE(std::fabs(chosen - value) <= 2 * bound(kMx, value, value));
    }
  }
}

TEST_CASE("mxfp8: large elements take no precision from those with another scale") {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const float sizes[] = {1e30F, 1e-20F, 1, 1e-8F};
  Floats values(256);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float size = sizes[i / 32 % 4];
    values[i] = size * (std::fabs(normal(random)) + 0.01F);
  }
  const Floats result = through(kMx, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    REQUIRE(std::fabs(result[i] - values[i]) <= values[i] / 16);
  }
}

TEST_CASE("mxfp8: beside the largest floats codes stay finite, and errors are reported") {
  std::mt19937 random(4);
  Floats values = random_floats(128, random);
  for (float& value : values) value = std::fmod(value, 1e30F);
  const Floats clean = through(kMx, values);
  const float large[] = {kLargestFloat, -kLargestFloat, 241 * 0x1p120F, kMost, kInfinity};
  std::copy(std::begin(large), std::end(large), values.begin() + 40);
  Floats errors(values.size());
  const Floats result = through(kMx, values, errors.data());
  const float wanted[] = {kMost, -kMost, kMost, kMost, kInfinity};
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    if (i >= 40 && i < 45) REQUIRE(result[i] == wanted[i - 40]);
    if (i < 32 || i >= 64) REQUIRE(result[i] == clean[i]);
    REQUIRE(errors[i] == (std::isfinite(values[i]) ? values[i] - result[i] : 0));
  }
  for (unsigned seed = 0; seed < 500; ++seed) {
    const Floats chosen = by_chance(kMx, values, mix64(seed));
    for (std::size_t i = 40; i < 45; ++i) REQUIRE(chosen[i] == wanted[i - 40]);
  }
}

TEST_CASE("mxfp8: all instruction sets read any codes alike") {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    Bytes code(132);
    for (std::byte& each : code) each = static_cast<std::byte>(random());
    for (int i = 0; i < 4; ++i) code[i] = static_cast<std::byte>(10 + random() % 238);
    if (round % 2 == 1) {  // without specials
      for (std::size_t i = 4; i < code.size(); ++i) code[i] &= std::byte{0xfb};
    }
    const auto read_with = [&](const KernelTable& table) {
      Bytes result(128 * sizeof(float));
      decode_with(table, kMx, Dtype::kFloat32, code.data(), 128, result.data(), 1);
      return result;
    };
    const Bytes wanted = read_with(*kernel_table(Isa::kPortable));
    for (std::size_t i = 0; i < 128; ++i) {
      float value;
      std::memcpy(&value, wanted.data() + i * sizeof value, sizeof value);
      const int of_element = std::to_integer<int>(code[4 + i % 32 * 4 + i / 32]);
      const int power = std::to_integer<int>(code[i / 32]) - 127;
      if (of_element == 0x7f) {
        REQUIRE(std::isnan(value));
      } else if ((of_element & 0x7f) == 0x7e) {
        REQUIRE(value == (of_element < 128 ? kInfinity : -kInfinity));
      } else {
        REQUIRE(value == std::ldexp(value_of(of_element), power));
      }
    }
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
      const KernelTable* table = kernel_table(isa);
      if (table != nullptr) REQUIRE(read_with(*table) == wanted);
    }
  }
}

}  // namespace
}  // namespace hvd::low_bit_tests
