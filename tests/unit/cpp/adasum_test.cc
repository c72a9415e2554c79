// Adasum: its kernels on every instruction set, and the collective against the definition.
#include "collective/adasum.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "adasum_reference.h"
#include "data_world.h"
#include "kernels/adasum.h"
#include "kernels/kernel_table.h"
#include "kernels_reference.h"

namespace hvd {
namespace {

using namespace kernels_reference;
using test::adasum_reference;
using test::Values;

constexpr Dtype kDtypes[] = {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64};

std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> tables;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (const KernelTable* table = kernel_table(isa)) tables.push_back(table);
  }
  return tables;
}

Bytes encoded(Dtype dtype, const Values& values) {
  Bytes bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    if (dtype == Dtype::kFloat16) set_element(bytes, i, Half::encode(value));
    if (dtype == Dtype::kBfloat16) set_element(bytes, i, Brain::encode(value));
    if (dtype == Dtype::kFloat32) set_element(bytes, i, value);
    if (dtype == Dtype::kFloat64) set_element(bytes, i, values[i]);
  }
  return bytes;
}

Values decoded(Dtype dtype, const Bytes& bytes) {
  Values values(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::kFloat16) values[i] = Half::decode(element<std::uint16_t>(bytes, i));
    if (dtype == Dtype::kBfloat16) values[i] = Brain::decode(element<std::uint16_t>(bytes, i));
    if (dtype == Dtype::kFloat32) values[i] = element<float>(bytes, i);
    if (dtype == Dtype::kFloat64) values[i] = element<double>(bytes, i);
  }
  return values;
}

// The size of a unit in the last place at 1.
double unit_of(Dtype dtype) {
  if (dtype == Dtype::kFloat16) return 0x1p-10;
  if (dtype == Dtype::kBfloat16) return 0x1p-7;
  return dtype == Dtype::kFloat32 ? 0x1p-23 : 0x1p-52;
}

std::vector<Bytes> random_sources(Dtype dtype, std::size_t sources, std::size_t count,
                                  std::mt19937& random) {
  std::normal_distribution<double> normal(0.3);
  std::vector<Bytes> result;
  for (std::size_t s = 0; s < sources; ++s) {
    Values values(count);
    for (double& value : values) value = normal(random);
    result.push_back(encoded(dtype, values));
  }
  return result;
}

std::vector<const std::byte*> addresses_of(const std::vector<Bytes>& sources) {
  std::vector<const std::byte*> addresses;
  for (const Bytes& source : sources) addresses.push_back(source.data());
  return addresses;
}

TEST_CASE("Adasum kernels: dot products of all pairs, the same bits on all instruction sets") {
  std::mt19937 random(1);
  for (const Dtype dtype : kDtypes) {
    for (const std::size_t source_count : {1, 2, 3, 8, 65, 130}) {
      for (const std::size_t count : {0, 1, 31, 32, 33, 1000, 3001}) {
        if (source_count > 8 && count > 33) continue;
        CAPTURE(std::string(name_of(dtype)));
        CAPTURE(source_count);
        CAPTURE(count);
        const auto sources = random_sources(dtype, source_count, count, random);
        Values expected;
        for (std::size_t i = 0; i < source_count; ++i) {
          for (std::size_t j = i; j < source_count; ++j) {
            expected.push_back(1.0 +
                               test::dot(decoded(dtype, sources[i]), decoded(dtype, sources[j])));
          }
        }
        Values first;
        for (const KernelTable* table : available_tables()) {
          Values gram(gram_entries(source_count), 1.0);  // it adds to what is there
          accumulate_gram_with(*table, dtype, addresses_of(sources), count, gram.data());
          if (first.empty()) first = gram;
          REQUIRE(gram == first);
        }
        for (std::size_t i = 0; i < expected.size(); ++i) {
          REQUIRE(first[i] == doctest::Approx(expected[i]).epsilon(1e-12));
        }
      }
    }
  }
}

TEST_CASE("Adasum kernels: the weighted sum, the same bits on all instruction sets") {
  std::mt19937 random(2);
  const Values weights{0.75, -1.1, 0.3, 2.0, 1e-3};
  for (const Dtype dtype : kDtypes) {
    for (const std::size_t source_count : {1, 2, 5}) {
      for (const std::size_t count : {0, 1, 7, 64, 1003}) {
        const auto sources = random_sources(dtype, source_count, count, random);
        Bytes first;
        for (const KernelTable* table : available_tables()) {
          Bytes result(count * size_of(dtype));
          Bytes copy = result;
          reduce_with(*table, {.dtype = dtype, .op = ReduceOp::kAdasum, .weights = weights.data()},
                      addresses_of(sources), result.data(), copy.data(), count);
          if (first.empty()) first = result;
          REQUIRE(result == first);
          REQUIRE(result == copy);
        }
        const Values values = decoded(dtype, first);
        for (std::size_t i = 0; i < count; ++i) {
          double expected = 0;
          for (std::size_t s = 0; s < source_count; ++s) {
            expected += weights[s] * decoded(dtype, sources[s])[i];
          }
          REQUIRE(std::abs(values[i] - expected) <= 16 * unit_of(dtype));
        }
      }
    }
  }
}

// One rank of a run: its tensors, in place.
struct Rank {
  std::vector<Bytes> tensors;
  ViewList views;
  std::unique_ptr<Adasum> adasum;
};

void run_adasum(std::vector<Rank>& ranks, const std::vector<ReduceSpec>& specs, int absent,
                BlockNumber first_block, std::mt19937& random) {
  test::DataWorld world(static_cast<int>(ranks.size()), first_block);
  std::vector<Adasum*> addresses;
  std::uint32_t blocks = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      Bytes& bytes = ranks[rank].tensors[i];
      std::byte* data = static_cast<int>(rank) == absent ? nullptr : bytes.data();
      ranks[rank].views.append(
          {.in = data, .out = data, .size_bytes = bytes.size(), .spec = specs[i]});
    }
    ranks[rank].adasum = std::make_unique<Adasum>(*world.peers[rank]);
    blocks = ranks[rank].adasum->begin(ranks[rank].views, first_block);
    addresses.push_back(ranks[rank].adasum.get());
  }
  test::run_all(world, addresses, random);
  for (const auto& peers : world.peers) {
    for (const SharedWord& counter : peers->own().counters) {
      CHECK(counter.load() == static_cast<std::uint32_t>(first_block + blocks));
    }
  }
}

TEST_CASE("Adasum: tensors of all dtypes, 1 to 9 ranks, with and without an absent one") {
  std::mt19937 random(3);
  const BlockNumber near_wrap = (BlockNumber{1} << 32) - 3;
  for (int size = 1; size <= 9; ++size) {
    for (const int absent : {-1, size - 1}) {
      if (size == 1 && absent == 0) continue;
      std::vector<Rank> ranks(size);
      std::vector<ReduceSpec> specs;
      std::vector<std::vector<Values>> inputs;  // by tensor, by rank
      for (const std::size_t count : {1UL, 40UL, 5000UL, 150'000UL / size}) {
        for (const Dtype dtype : kDtypes) {
          specs.push_back({.dtype = dtype, .op = ReduceOp::kAdasum});
          if (count == 40) {
            specs.back().prescale = 0.5;
            specs.back().postscale = 3.0;
          }
          const auto sources = random_sources(dtype, ranks.size(), count, random);
          inputs.emplace_back();
          for (int rank = 0; rank < size; ++rank) {
            ranks[rank].tensors.push_back(sources[rank]);
            inputs.back().push_back(decoded(dtype, sources[rank]));
            if (rank == absent) inputs.back().back().assign(count, 0.0);
          }
        }
      }
      run_adasum(ranks, specs, absent, near_wrap, random);
      for (std::size_t tensor = 0; tensor < specs.size(); ++tensor) {
        CAPTURE(size);
        CAPTURE(absent);
        CAPTURE(std::string(name_of(specs[tensor].dtype)));
        const double scale = specs[tensor].prescale * specs[tensor].postscale;
        const Values expected = adasum_reference(inputs[tensor]);
        const Values result = decoded(specs[tensor].dtype, ranks[0].tensors[tensor]);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const double tolerance = 32 * unit_of(specs[tensor].dtype) + 1e-11;  // they may cancel
          REQUIRE(std::abs(result[i] - scale * expected[i]) <= tolerance);
        }
        for (int rank = 1; rank < size; ++rank) {
          if (rank != absent) CHECK(ranks[rank].tensors[tensor] == ranks[0].tensors[tensor]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hvd
