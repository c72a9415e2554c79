// The weights of Adasum against the direct evaluation of its definition.
#include "collective/adasum_weights.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "adasum_reference.h"

namespace hvd {
namespace {

using test::adasum_reference;
using test::Values;

Values weights_of(const std::vector<Values>& vectors) {
  Values gram;
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    for (std::size_t j = i; j < vectors.size(); ++j) {
      gram.push_back(test::dot(vectors[i], vectors[j]));
    }
  }
  Values weights(vectors.size());
  adasum_weights(gram, weights);
  return weights;
}

void check_against_reference(const std::vector<Values>& vectors) {
  const Values weights = weights_of(vectors);
  const Values expected = adasum_reference(vectors);
  CAPTURE(vectors.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double value = 0;
    for (std::size_t v = 0; v < vectors.size(); ++v) value += weights[v] * vectors[v][i];
    REQUIRE(value == doctest::Approx(expected[i]).epsilon(1e-9));
  }
}

Values random_values(std::mt19937& random, std::size_t count = 50) {
  std::normal_distribution<double> normal;
  Values values(count);
  for (double& value : values) value = normal(random);
  return values;
}

TEST_CASE("Adasum weights: random vectors, 1 to 9 ranks") {
  std::mt19937 random(1);
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    std::vector<Values> vectors;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      vectors.push_back(random_values(random));
      for (double& value : vectors.back()) value = value * static_cast<double>(rank + 1) + 0.5;
    }
    check_against_reference(vectors);
  }
}

TEST_CASE("Adasum weights: every mix of equal, opposite, longer and zero vectors") {
  std::mt19937 random(2);
  const Values base = random_values(random);
  const double factors[] = {0.0, 1.0, -1.0, 2.5};
  for (std::size_t ranks = 1; ranks <= 5; ++ranks) {
    for (unsigned mix = 0; mix < (1U << (2 * ranks)); ++mix) {
      std::vector<Values> vectors(ranks, base);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (double& value : vectors[rank]) value *= factors[(mix >> (2 * rank)) & 3];
      }
      const Values weights = weights_of(vectors);
      const Values expected = adasum_reference(vectors);
      double total = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        total += weights[rank] * factors[(mix >> (2 * rank)) & 3];
        CHECK(std::isfinite(weights[rank]));
      }
      CAPTURE(mix);
      REQUIRE(std::abs(total * base[0] - expected[0]) < 1e-9);
    }
  }
}

TEST_CASE("Adasum weights: orthogonal vectors add up, equal ones are averaged, zeros are nothing") {
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    std::vector<Values> orthogonal(ranks, Values(ranks));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      orthogonal[rank][rank] = static_cast<double>(rank + 1);
    }
    CHECK(weights_of(orthogonal) == Values(ranks, 1.0));
    CHECK(weights_of(std::vector<Values>(ranks, Values(3))) == Values(ranks, 1.0));
    double total = 0;
    for (const double weight : weights_of(std::vector<Values>(ranks, {3.0, -4.0}))) total += weight;
    CHECK(total == doctest::Approx(1.0));
  }
  CHECK(weights_of({{1, 2}, {1, 2}, {1, 2}, {1, 2}}) == Values(4, 0.25));
  CHECK(weights_of({{1, 2}, {-1, -2}}) == Values(2, 1.5));
  CHECK(weights_of({{1, 2}, {0, 0}}) == Values(2, 1.0));
}

TEST_CASE("Adasum weights: what is left after vectors cancelled is not taken for a direction") {
  std::mt19937 random(3);
  const Values a = random_values(random, 1000);
  const Values c = random_values(random, 1000);
  Values minus_a = a;
  for (double& value : minus_a) value *= -(1 + 1e-15);
  const Values weights = weights_of({a, minus_a, c, Values(1000)});
  for (const double weight : weights) CHECK(std::abs(weight) < 2);
  CHECK(weights[2] == doctest::Approx(1.0));
}

TEST_CASE("Adasum weights: dot products that are no numbers do not hide") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, std::numeric_limits<double>::quiet_NaN()}) {
    const Values gram{1.0, bad, bad};
    Values weights(2);
    adasum_weights(gram, weights);
    CHECK(!std::isfinite(weights[0]));
    CHECK(std::isnan(weights[1]));
  }
}

}  // namespace
}  // namespace hvd
