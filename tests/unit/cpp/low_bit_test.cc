// The low-bit formats: bounds of their errors, values that are not finite, and the same bits on
// every instruction set that this processor has.
#include "kernels/low_bit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels_reference.h"
#include "low_bit_values.h"

namespace hvd {
namespace low_bit_tests {
namespace {

constexpr LinkFormat kFormats[] = {LinkFormat::kInt8, LinkFormat::kFp8, LinkFormat::kInt4,
                                   LinkFormat::kMxfp8};
constexpr std::size_t kCounts[] = {1, 5, 127, 128, 129, 1000, 1024};

TEST_CASE("low bits: errors stay within half a step, and are reported") {
  std::mt19937 random(1);
  for (const LinkFormat format : kFormats) {
    for (int round = 0; round < 300; ++round) {
      const Floats values = random_floats(700, random);
      Floats errors(values.size());
      const Floats result = decoded(format, coded(format, values, errors.data()), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        CAPTURE(values[i]);
        CAPTURE(result[i]);
        REQUIRE(std::fabs(values[i] - result[i]) <=
                bound(format, values[i], largest_beside(format, values, i)));
        REQUIRE(errors[i] == values[i] - result[i]);
      }
    }
  }
}

TEST_CASE("low bits: the largest of a block keeps 16 bits") {
  std::mt19937 random(2);
  for (const LinkFormat format : {LinkFormat::kInt8, LinkFormat::kFp8, LinkFormat::kInt4}) {
    for (int round = 0; round < 200; ++round) {
      const Floats values = random_floats(128, random);
      const Floats once = through(format, values);
      const float largest = largest_beside(format, values, 0);
      if (largest > 0x1p-110F) {
        const float kept = largest_beside(format, once, 0);
        REQUIRE(kept == doctest::Approx(largest).epsilon(0x1p-15));
        REQUIRE(kept <= largest);
      }
    }
  }
}

TEST_CASE("low bits: errors are added in float32, with the same bits on every instruction set") {
  std::mt19937 random(3);
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16}) {
    for (const std::size_t count : kCounts) {
      const Floats errors = random_floats(count, random);
      Bytes tensor(count * size_of(dtype));
      std::ranges::generate(tensor, [&] { return static_cast<std::byte>(random() % 0x70); });
      Bytes expected(tensor.size());
      add_errors_with(*kernel_table(Isa::kPortable), dtype, tensor.data(), errors.data(), count,
                      expected.data());
      if (dtype == Dtype::kFloat32) {
        Floats sums(count);
        std::memcpy(sums.data(), tensor.data(), tensor.size());
        for (std::size_t i = 0; i < count; ++i) sums[i] += errors[i];
        REQUIRE(std::memcmp(sums.data(), expected.data(), tensor.size()) == 0);
      }
      for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
        if (kernel_table(isa) == nullptr) continue;
        Bytes found = tensor;  // in place
        add_errors_with(*kernel_table(isa), dtype, found.data(), errors.data(), count,
                        found.data());
        REQUIRE(found == expected);
      }
    }
  }
}

TEST_CASE("low bits: ties go to even") {
  Floats values(128);
  values[0] = 126;  // so the scale is 1
  values[1] = 2.5F;
  values[2] = 3.5F;
  values[3] = -2.5F;
  const Floats result = through(LinkFormat::kInt8, values);
  REQUIRE(result[1] == 2);
  REQUIRE(result[2] == 4);
  REQUIRE(result[3] == -2);
  values[0] = 7;
  REQUIRE(through(LinkFormat::kInt4, values) == [&] {
    Floats rounded(128);
    rounded[0] = 7;
    rounded[1] = 2;
    rounded[2] = 4;
    rounded[3] = -2;
    return rounded;
  }());
  values[0] = 416;
  values[1] = 17;  // between 16 and 18
  values[2] = 19;  // between 18 and 20
  values[3] = 0x1.8p-9F;
  values[4] = 0x1p-10F;
  for (const LinkFormat format : {LinkFormat::kFp8, LinkFormat::kMxfp8}) {
    const Floats small = through(format, values);
    REQUIRE(small[1] == 16);
    REQUIRE(small[2] == 20);
    REQUIRE(small[3] == 0x1p-8F);
    REQUIRE(small[4] == 0);
  }
}

TEST_CASE("low bits: NaN and infinities survive, and spare their neighbours") {
  std::mt19937 random(3);
  for (const LinkFormat format : kFormats) {
    Floats values(300);
    for (float& value : values) value = static_cast<float>(random() % 1000) / 250 - 2;
    const Floats clean = through(format, values);
    const Floats before = values;
    values[3] = std::nanf("");
    values[77] = kInfinity;
    values[78] = -kInfinity;
    Floats errors(values.size());
    const Floats result = through(format, values, errors.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i == 3) REQUIRE(std::isnan(result[i]));
      if (i == 77 || i == 78) REQUIRE(result[i] == values[i]);
      if (i == 3 || i == 77 || i == 78) {
        REQUIRE(errors[i] == 0);
      } else if (i < 128) {
        REQUIRE(std::fabs(result[i] - values[i]) <=
                bound(format, values[i], largest_beside(format, before, i)));
      } else {
        REQUIRE(result[i] == clean[i]);
      }
    }
  }
}

TEST_CASE("low bits: NaN with any bits survives, also alone") {
  // As memset(0xff) makes it, without its sign, and one that signals.
  for (const std::uint32_t bits : {0xffffffffU, 0x7fffffffU, 0x7f800001U}) {
    for (const LinkFormat format : kFormats) {
      Floats values(200, 1.5F);
      values[130] = std::bit_cast<float>(bits);
      const Floats result = through(format, values);
      REQUIRE(std::isnan(result[130]));
      REQUIRE(result[131] == doctest::Approx(1.5));
    }
  }
}

TEST_CASE("low bits: zeros, subnormals and the largest floats") {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const LinkFormat format : kFormats) {
    REQUIRE(through(format, Floats(200)) == Floats(200));
    const Floats tiny = through(format, Floats(128, 0x1p-149F));
    REQUIRE(std::ranges::all_of(tiny, [](float value) { return std::fabs(value) <= 0x1p-126F; }));
    const Floats huge = through(format, Floats(128, kMost));
    REQUIRE(huge[0] <= kMost);
    REQUIRE(huge[0] >= kMost * (format == LinkFormat::kMxfp8 ? 0.9375F : 0.9999F));
    REQUIRE(through(format, {0, 1, 0, -1})[2] == 0);
  }
}

TEST_CASE("low bits: sums of coded values, in float32 and in order") {
  std::mt19937 random(4);
  for (const LinkFormat format : kFormats) {
    for (const std::size_t count : kCounts) {
      std::vector<Bytes> codes;
      std::vector<const std::byte*> sources;
      Floats sum(count);
      for (int source = 0; source < 3; ++source) {
        const Floats values = random_floats(count, random);
        codes.push_back(coded(format, values));
        const Floats part = through(format, values);
        for (std::size_t i = 0; i < count; ++i) sum[i] = source == 0 ? part[i] : sum[i] + part[i];
      }
      for (const Bytes& code : codes) sources.push_back(code.data());
      Bytes result(low_bit_bytes(format, count));
      Floats errors(count, 0.25F);
      add_coded(format, sources, count, result.data(), {errors.data(), 2});
      REQUIRE(result == coded(format, sum));
      const Floats sent = decoded(format, result, count);
      for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(errors[i] == 0.25F + (sum[i] - sent[i]) * 2);
      }
    }
  }
}

TEST_CASE("low bits: half precision is coded from float32") {
  constexpr Dtype kHalves[] = {Dtype::kFloat16, Dtype::kBfloat16};
  std::mt19937 random(5);
  for (const LinkFormat format : kFormats) {
    for (const Dtype dtype : kHalves) {
      const auto widen = [&](std::uint16_t half) {
        return dtype == Dtype::kFloat16 ? kernels_reference::Half::decode(half)
                                        : kernels_reference::Brain::decode(half);
      };
      std::vector<std::uint16_t> halves(300);
      Floats floats;
      for (std::uint16_t& half : halves) {
        half = static_cast<std::uint16_t>(0x3000 + random() % 0x1000 + (random() % 2) * 0x8000);
        floats.push_back(widen(half));
      }
      Bytes code(low_bit_bytes(format, halves.size()));
      encode(format, dtype, reinterpret_cast<const std::byte*>(halves.data()), halves.size(),
             code.data());
      REQUIRE(code == coded(format, floats));
      const Floats wanted = decoded(format, code, halves.size(), 0.5F);
      std::vector<std::uint16_t> back(halves.size());
      decode(format, dtype, code.data(), back.size(), reinterpret_cast<std::byte*>(back.data()),
             0.5F);
      for (std::size_t i = 0; i < back.size(); ++i) {
        REQUIRE(back[i] == (dtype == Dtype::kFloat16
                                ? kernels_reference::Half::encode(wanted[i])
                                : kernels_reference::Brain::encode(wanted[i])));
      }
    }
  }
}

// Any bits at all: subnormals, infinities, NaNs.
Floats any_floats(std::size_t count, std::mt19937& random) {
  Floats values = random_floats(count, random);
  for (float& value : values) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (random() % 50 == 0) std::memcpy(&value, &bits, sizeof value);
  }
  return values;
}

struct Outcome {
  Bytes code, sum;
  Bytes values;
  Floats errors;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const KernelTable& table, LinkFormat format, const Floats& values,
                   Rounding rounding) {
  const std::size_t count = values.size();
  Outcome outcome{Bytes(low_bit_bytes(format, count)), Bytes(low_bit_bytes(format, count)),
                  Bytes(count * sizeof(float)), Floats(count)};
  const Coding coding{outcome.errors.data(), 0.5F, rounding, 77};
  encode_with(table, format, Dtype::kFloat32, bytes_of(values), count, outcome.code.data(), coding);
  const std::byte* const sources[] = {outcome.code.data(), outcome.code.data()};
  add_coded_with(table, format, sources, count, outcome.sum.data(), coding);
  decode_with(table, format, Dtype::kFloat32, outcome.sum.data(), count, outcome.values.data(),
              0.3F);
  return outcome;
}

TEST_CASE("low bits: all instruction sets give the same bits") {
  std::mt19937 random(6);
  for (const LinkFormat format : kFormats) {
    for (const std::size_t count : kCounts) {
      for (int round = 0; round < 20; ++round) {
        const Floats values = any_floats(count, random);
        const Rounding rounding{round % 2 == 1, random()};
        const Outcome wanted = outcome_of(*kernel_table(Isa::kPortable), format, values, rounding);
        for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
          const KernelTable* table = kernel_table(isa);
          if (table == nullptr) continue;
          CAPTURE(std::string(table->isa));
          REQUIRE(outcome_of(*table, format, values, rounding) == wanted);
        }
      }
    }
  }
}

TEST_CASE("low bits by chance: errors stay within a step, and are reported") {
  std::mt19937 random(7);
  for (const LinkFormat format : kFormats) {
    for (unsigned round = 0; round < 300; ++round) {
      const Floats values = random_floats(700, random);
      Floats errors(values.size());
      const Floats result = by_chance(format, values, round, errors.data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        CAPTURE(values[i]);
        CAPTURE(result[i]);
        REQUIRE(std::fabs(values[i] - result[i]) <=
                2 * bound(format, values[i], largest_beside(format, values, i)));
        REQUIRE(errors[i] == values[i] - result[i]);
      }
      REQUIRE(by_chance(format, values, round) == result);
    }
  }
}

TEST_CASE("low bits by chance: the mean is the value") {
  constexpr int kRounds = 4000;
  std::mt19937 random(8);
  for (const LinkFormat format : kFormats) {
    Floats values(256);
    for (float& value : values) value = static_cast<float>(random() % 1001) / 500 - 1;
    std::vector<double> sums(values.size());
    for (unsigned round = 0; round < kRounds; ++round) {
      const Floats result = by_chance(format, values, mix64(round));
      for (std::size_t i = 0; i < values.size(); ++i) sums[i] += double{result[i]};
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      CAPTURE(values[i]);
      // The deviation of one is half a step at most.
      const double half = double{bound(format, values[i], largest_beside(format, values, i))};
      REQUIRE(std::fabs(sums[i] / kRounds - double{values[i]}) <= 6 * half / std::sqrt(kRounds));
    }
  }
}

TEST_CASE("low bits by chance: zeros, NaN, infinities and the largest value stay") {
  for (const LinkFormat format : kFormats) {
    Floats values(128, 0.3F);
    values[0] = 1;
    values[1] = 0;
    values[2] = kInfinity;
    values[3] = -kInfinity;
    values[4] = std::nanf("");
    for (unsigned seed = 0; seed < 2000; ++seed) {
      const Floats result = by_chance(format, values, mix64(seed));
      REQUIRE(result[0] == doctest::Approx(1).epsilon(0x1p-14));
      REQUIRE(result[1] == 0);
      REQUIRE(result[2] == kInfinity);
      REQUIRE(result[3] == -kInfinity);
      REQUIRE(std::isnan(result[4]));
      REQUIRE(std::isfinite(result[5]));
    }
  }
}

TEST_CASE("low bits by chance: the number of an element counts, not where a call begins") {
  std::mt19937 random(9);
  const Floats values = random_floats(1000, random);
  const Rounding rounding{true, 5};
  for (const LinkFormat format : kFormats) {
    Bytes whole(low_bit_bytes(format, 1000));
    encode(format, Dtype::kFloat32, bytes_of(values), 1000, whole.data(), {.rounding = rounding});
    Bytes parts(whole.size());
    encode(format, Dtype::kFloat32, bytes_of(values), 384, parts.data(), {.rounding = rounding});
    encode(format, Dtype::kFloat32, bytes_of(values) + 384 * sizeof(float), 616,
           parts.data() + low_bit_bytes(format, 384), {.rounding = rounding, .first = 384});
    REQUIRE(parts == whole);
    encode(format, Dtype::kFloat32, bytes_of(values), 1000, parts.data(),
           {.rounding = rounding.of(1)});
    REQUIRE(parts != whole);
  }
}

}  // namespace
}  // namespace low_bit_tests
}  // namespace hvd
