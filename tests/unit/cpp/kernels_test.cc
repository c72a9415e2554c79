// The kernels against a scalar reference, on every instruction set that this processor has.
// Payloads of NaNs are compared only for Min and Max, where they are defined.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/reduce.h"
#include "kernels_reference.h"

namespace hvd {
namespace {

using namespace kernels_reference;

constexpr ReduceOp kOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> tables;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (const KernelTable* table = kernel_table(isa)) tables.push_back(table);
  }
  return tables;
}

// All NaNs of a floating dtype made the same, for ops whose payloads are the processor's choice.
Bytes without_payloads(Dtype dtype, Bytes bytes) {
  for (std::size_t i = 0; i < bytes.size() / size_of(dtype); ++i) {
    const auto unify = [&]<class T>(T nan, auto is_nan) {
      if (is_nan(element<T>(bytes, i))) set_element<T>(bytes, i, nan);
    };
    if (dtype == Dtype::kFloat32) unify(NAN, [](float value) { return std::isnan(value); });
    if (dtype == Dtype::kFloat64) unify(double{NAN}, [](double x) { return std::isnan(x); });
    if (dtype == Dtype::kFloat16) {
      unify(std::uint16_t{0x7e00}, [](std::uint16_t x) { return std::isnan(Half::decode(x)); });
    }
    if (dtype == Dtype::kBfloat16) {
      unify(std::uint16_t{0x7fc0}, [](std::uint16_t x) { return std::isnan(Brain::decode(x)); });
    }
  }
  return bytes;
}

// Ordinary numbers mostly, some of any bits: NaN, inf, subnormals, integers that overflow.
Bytes random_bytes(Dtype dtype, std::size_t count, std::mt19937_64& random) {
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t any_bits = random();
    std::memcpy(bytes.data() + i * size_of(dtype), &any_bits, size_of(dtype));
    if (random() % 8 == 0) continue;
    const float value = static_cast<float>(static_cast<int>(random() % 20001) - 10000) / 512.0F;
    if (dtype == Dtype::kFloat32) set_element(bytes, i, value * 1.1F);
    if (dtype == Dtype::kFloat64) set_element(bytes, i, value * 1.1);
    if (dtype == Dtype::kFloat16) set_element(bytes, i, Half::encode(value));
    if (dtype == Dtype::kBfloat16) set_element(bytes, i, Brain::encode(value));
    if (dtype == Dtype::kBool) set_element(bytes, i, static_cast<std::uint8_t>(random() % 3));
  }
  return bytes;
}

// Copies of the sources at odd addresses, `shift` bytes apart, with room that must stay untouched.
struct Arena {
  static constexpr std::size_t kMargin = 64;

  Arena(const std::vector<Bytes>& sources, std::size_t shift) : size_bytes(sources[0].size()) {
    for (std::size_t s = 0; s < sources.size() + 2; ++s) {
      begins.push_back(kMargin + s * shift);
      rooms.emplace_back(begins[s] + size_bytes + kMargin, std::byte{0xa5});
      if (s >= sources.size() || size_bytes == 0) continue;
      std::memcpy(at(s), sources[s].data(), size_bytes);
    }
  }

  std::byte* at(std::size_t index) { return rooms[index].data() + begins[index]; }
  std::byte* dst() { return at(rooms.size() - 2); }
  std::byte* copy() { return at(rooms.size() - 1); }
  std::vector<const std::byte*> sources() {
    std::vector<const std::byte*> addresses;
    for (std::size_t s = 0; s + 2 < rooms.size(); ++s) addresses.push_back(at(s));
    return addresses;
  }
  Bytes contents(const std::byte* begin) const { return Bytes(begin, begin + size_bytes); }

  bool margins_are_intact() const {
    for (std::size_t s = 0; s < rooms.size(); ++s) {
      for (std::size_t i = 0; i < kMargin; ++i) {
        if (rooms[s][begins[s] - 1 - i] != std::byte{0xa5}) return false;
        if (rooms[s][begins[s] + size_bytes + i] != std::byte{0xa5}) return false;
      }
    }
    return true;
  }

  std::size_t size_bytes;
  std::vector<std::size_t> begins;
  std::vector<Bytes> rooms;
};

// The result of `table`, which must be the same in dst and in copy.
Bytes result_of(const KernelTable& table, const ReduceSpec& spec, const std::vector<Bytes>& sources,
                std::size_t shift = 0) {
  Arena arena(sources, shift);
  const std::size_t count = sources[0].size() / size_of(spec.dtype);
  reduce_with(table, spec, arena.sources(), arena.dst(), arena.copy(), count);
  CHECK(arena.margins_are_intact());
  CHECK(arena.contents(arena.dst()) == arena.contents(arena.copy()));
  return arena.contents(arena.dst());
}

std::string words_of(const ReduceSpec& spec, std::size_t sources, std::size_t count) {
  return std::string(name_of(spec.dtype)) + " " + name_of(spec.op) + " x" +
         std::to_string(spec.prescale) + " x" + std::to_string(spec.postscale) + ", " +
         std::to_string(sources) + " sources of " + std::to_string(count);
}

void check_against_reference(const ReduceSpec& spec, const std::vector<Bytes>& sources) {
  const bool has_defined_payloads = spec.op == ReduceOp::kMin || spec.op == ReduceOp::kMax;
  const Bytes expected = without_payloads(spec.dtype, reference(spec, sources));
  Bytes first;
  CAPTURE(words_of(spec, sources.size(), sources[0].size() / size_of(spec.dtype)));
  for (const KernelTable* table : available_tables()) {
    CAPTURE(table->isa);
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}, size_of(spec.dtype) * 3}) {
      Bytes result = result_of(*table, spec, sources, shift);
      if (!has_defined_payloads) result = without_payloads(spec.dtype, result);
      CHECK(without_payloads(spec.dtype, result) == expected);
      if (first.empty()) first = result;
      CHECK(result == first);
    }
  }
}

void check_all_sizes(ReduceSpec spec, const std::vector<std::size_t>& counts) {
  std::mt19937_64 random(static_cast<unsigned>(spec.dtype) * 10U + static_cast<unsigned>(spec.op));
  for (const std::size_t source_count : {1, 2, 3, 8}) {
    spec.divisor = static_cast<int>(source_count);
    for (const std::size_t count : counts) {
      std::vector<Bytes> sources;
      for (std::size_t s = 0; s < source_count; ++s) {
        sources.push_back(random_bytes(spec.dtype, count, random));
      }
      check_against_reference(spec, sources);
    }
  }
}

template <class T>
std::vector<T> reduced(const KernelTable& table, const ReduceSpec& spec,
                       const std::vector<std::vector<T>>& sources) {
  std::vector<Bytes> bytes;
  for (const auto& source : sources) bytes.push_back(bytes_of(source));
  return values_of<T>(result_of(table, spec, bytes));
}

std::vector<std::uint16_t> all_16_bit_values() {
  std::vector<std::uint16_t> values;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    values.push_back(static_cast<std::uint16_t>(bits));
  }
  return values;
}

TEST_CASE("kernels: every dtype, op, count and alignment agrees with the reference") {
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (const ReduceOp op : kOps) {
      const ReduceSpec spec{static_cast<Dtype>(dtype), op};
      if (unsupported_reason(spec) == nullptr) check_all_sizes(spec, {0, 1, 7, 64, 1000, 4099});
    }
  }
}

TEST_CASE("kernels: prescale and postscale agree with the reference") {
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (const ReduceOp op : kOps) {
      for (const auto& [prescale, postscale] :
           {std::pair{0.3, 1.0}, std::pair{1.0, 3.0}, std::pair{-1.75, 0.7}}) {
        const ReduceSpec spec{static_cast<Dtype>(dtype), op, prescale, postscale};
        if (unsupported_reason(spec) == nullptr) check_all_sizes(spec, {7, 333});
      }
    }
  }
}

TEST_CASE("kernels: one source passes through unchanged, quiet NaNs included") {
  const std::vector<std::uint16_t> values = all_16_bit_values();
  for (const KernelTable* table : available_tables()) {
    CAPTURE(table->isa);
    std::vector<std::uint16_t> quiet = values;  // float16 conversion makes NaNs quiet
    for (auto& bits : quiet) bits |= (bits & 0x7fff) > 0x7c00 ? 0x200 : 0;
    CHECK(reduced<std::uint16_t>(*table, {Dtype::kFloat16, ReduceOp::kSum}, {values}) == quiet);
    CHECK(reduced<std::uint16_t>(*table, {Dtype::kBfloat16, ReduceOp::kSum}, {values}) == values);
    for (std::size_t i = 0; i < values.size(); i += 3) {  // alone: the code for single elements
      const std::vector<std::vector<std::uint16_t>> one{{values[i]}};
      REQUIRE(reduced(*table, {Dtype::kFloat16, ReduceOp::kMax}, one)[0] == quiet[i]);
      REQUIRE(reduced(*table, {Dtype::kBfloat16, ReduceOp::kMax}, one)[0] == values[i]);
    }
  }
}

TEST_CASE("kernels: scaling every 16-bit float rounds to nearest even") {
  const std::vector<Bytes> sources{bytes_of(all_16_bit_values())};
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    for (const double factor : {0.5, 0.75, 1.0 / 3, 1.0009765625, 0x1p-10, 300.0}) {
      check_against_reference({dtype, ReduceOp::kSum, 1.0, factor}, sources);
    }
  }
}

TEST_CASE("kernels: 16-bit floats accumulate in float32 and round once, ties to even") {
  const auto halves = [](float a, float b, float c) {
    return std::vector<std::vector<std::uint16_t>>{
        {Half::encode(a)}, {Half::encode(b)}, {Half::encode(c)}};
  };
  const auto brains = [](float a, float b, float c) {
    return std::vector<std::vector<std::uint16_t>>{
        {Brain::encode(a)}, {Brain::encode(b)}, {Brain::encode(c)}};
  };
  for (const KernelTable* table : available_tables()) {
    const auto half_sum = [&](float a, float b, float c) {
      return Half::decode(reduced(*table, {Dtype::kFloat16, ReduceOp::kSum}, halves(a, b, c))[0]);
    };
    const auto brain_sum = [&](float a, float b, float c) {
      return Brain::decode(reduced(*table, {Dtype::kBfloat16, ReduceOp::kSum}, brains(a, b, c))[0]);
    };
    CHECK(half_sum(2048, 1, 0) == 2048);
    CHECK(half_sum(2050, 1, 0) == 2052);
    CHECK(half_sum(2048, 1, 1) == 2050);
    CHECK(half_sum(65504, 15, 0) == 65504);
    CHECK(std::isinf(half_sum(65504, 16, 0)));
    CHECK(half_sum(65504, 65504, -65504) == 65504);
    CHECK(half_sum(0x1p-24F, 0x1p-24F, 0x1p-24F) == 0x1.8p-23F);
    CHECK(brain_sum(256, 1, 0) == 256);
    CHECK(brain_sum(258, 1, 0) == 260);
    CHECK(brain_sum(256, 1, 1) == 258);
  }
}

TEST_CASE("kernels: integer sums and products wrap around") {
  for (const KernelTable* table : available_tables()) {
    using Bytes8 = std::vector<std::int8_t>;
    CHECK(reduced<std::int8_t>(*table, {Dtype::kInt8, ReduceOp::kSum},
                               {{100, -100}, {100, -100}}) == Bytes8{-56, 56});
    CHECK(reduced<std::int16_t>(*table, {Dtype::kInt16, ReduceOp::kProduct}, {{-300}, {300}})[0] ==
          -24464);
    const std::int64_t most = std::numeric_limits<std::int64_t>::max();
    CHECK(reduced<std::int64_t>(*table, {Dtype::kInt64, ReduceOp::kSum}, {{most}, {1}})[0] ==
          -most - 1);
  }
}

TEST_CASE("kernels: the average of integers is the quotient truncated toward zero") {
  const std::int64_t large = (std::int64_t{1} << 61) + 1;
  for (const KernelTable* table : available_tables()) {
    const ReduceSpec by_two{Dtype::kInt32, ReduceOp::kAverage, 1.0, 1.0, 2};
    CHECK(reduced<std::int32_t>(*table, by_two, {{-7, 7, -1, 5}, {0, 0, 0, -2}}) ==
          std::vector<std::int32_t>{-3, 3, 0, 1});
    const ReduceSpec by_three{Dtype::kInt64, ReduceOp::kAverage, 1.0, 1.0, 3};
    CHECK(reduced<std::int64_t>(*table, by_three,
                                {{large, -large}, {large, -large}, {large, -large}}) ==
          std::vector<std::int64_t>{large, -large});
  }
}

TEST_CASE("kernels: scaled integers saturate, and a factor of one is exact") {
  const std::int64_t large = (std::int64_t{1} << 62) + 1;
  for (const KernelTable* table : available_tables()) {
    const ReduceSpec huge{Dtype::kInt32, ReduceOp::kSum, 1e30, 1.0};
    CHECK(reduced<std::int32_t>(*table, huge, {{1, -1, 0}}) ==
          std::vector<std::int32_t>{2147483647, -2147483647 - 1, 0});
    const ReduceSpec negative{Dtype::kUint8, ReduceOp::kSum, -1.0, 1.0};
    CHECK(reduced<std::uint8_t>(*table, negative, {{3}})[0] == 0);
    const ReduceSpec nan{Dtype::kInt16, ReduceOp::kSum, NAN, 1.0};
    CHECK(reduced<std::int16_t>(*table, nan, {{3}})[0] == 0);
    const ReduceSpec halved{Dtype::kInt64, ReduceOp::kMax, 1.0, 0.5};
    CHECK(reduced<std::int64_t>(*table, halved, {{3, -3}})[0] == 1);
    const ReduceSpec doubled_mean{Dtype::kInt64, ReduceOp::kAverage, 1.0, 2.0, 2};
    CHECK(reduced<std::int64_t>(*table, doubled_mean, {{large}})[0] == large);
  }
}

TEST_CASE("kernels: Min and Max keep the first NaN and the first of equal zeros") {
  for (const KernelTable* table : available_tables()) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      const std::vector<std::uint32_t> first{0x7fc00001, 0x3f800000, 0x80000000, 0x00000000};
      const std::vector<std::uint32_t> second{0xffc00002, 0x7fc00003, 0x00000000, 0x80000000};
      const std::vector<std::uint32_t> expected{0x7fc00001, 0x7fc00003, 0x80000000, 0x00000000};
      CHECK(reduced<std::uint32_t>(*table, {Dtype::kFloat32, op}, {first, second}) == expected);
    }
  }
}

TEST_CASE("kernels: dst may be any one of the sources") {
  std::mt19937_64 random(7);
  const std::size_t count = 1003;
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    const ReduceSpec spec{static_cast<Dtype>(dtype), ReduceOp::kSum};
    std::vector<Bytes> sources;
    for (int s = 0; s < 3; ++s) sources.push_back(random_bytes(spec.dtype, count, random));
    for (const KernelTable* table : available_tables()) {
      const Bytes expected = result_of(*table, spec, sources);
      for (std::size_t s = 0; s < sources.size(); ++s) {
        Arena arena(sources, 5);
        reduce_with(*table, spec, arena.sources(), arena.at(s), nullptr, count);
        CHECK(arena.contents(arena.at(s)) == expected);
        CHECK(arena.margins_are_intact());
      }
    }
  }
}

TEST_CASE("kernels: a thousand sources add up in order") {
  const std::vector<std::vector<float>> sources(1024, std::vector<float>(37, 1.5F));
  const ReduceSpec spec{Dtype::kFloat32, ReduceOp::kAverage, 1.0, 1.0, 1024};
  for (const KernelTable* table : available_tables()) {
    CHECK(reduced(*table, spec, sources) == std::vector<float>(37, 1.5F));
  }
}

TEST_CASE("kernels: unsupported combinations say why") {
  const auto reason = [](ReduceSpec spec) {
    const char* text = unsupported_reason(spec);
    return std::string(text == nullptr ? "" : text);
  };
  CHECK(reason({Dtype::kBool, ReduceOp::kAverage}).find("bool has no average") == 0);
  CHECK(reason({Dtype::kBool, ReduceOp::kSum, 0.5}).find("bool cannot be scaled") == 0);
  CHECK(reason({Dtype::kBool, ReduceOp::kSum}).empty());
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    const std::string text = reason({static_cast<Dtype>(dtype), ReduceOp::kAdasum});
    const std::string name = name_of(static_cast<Dtype>(dtype));
    CHECK((text.find("Adasum combines") == 0) == (name.find("float") == std::string::npos));
  }
  CHECK(reason({Dtype::kFloat32, ReduceOp::kAverage, 1.0, 1.0, 0}).find("divisor") !=
        std::string::npos);
  CHECK(reason({static_cast<Dtype>(kDtypeCount), ReduceOp::kSum}) == "unknown dtype");
  CHECK(reason({Dtype::kInt8, static_cast<ReduceOp>(6)}) == "unknown reduce op");
}

TEST_CASE("kernels: reduce uses the best instruction set of this processor") {
  CHECK(std::string(kernel_isa()) == available_tables().back()->isa);
  const std::vector<Bytes> sources{bytes_of<float>({1, 2}), bytes_of<float>({3, 4})};
  Arena arena(sources, 0);
  reduce({Dtype::kFloat32, ReduceOp::kSum}, arena.sources(), arena.dst(), nullptr, 2);
  CHECK(values_of<float>(arena.contents(arena.dst())) == std::vector<float>{4, 6});
}

}  // namespace
}  // namespace hvd
