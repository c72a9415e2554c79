// Adasum straight from its definition: vectors are combined one pair after the other.
#pragma once

#include <bit>
#include <cstddef>
#include <vector>

namespace hvd::test {

using Values = std::vector<double>;

inline double dot(const Values& a, const Values& b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(sum);
}

inline Values combine(const Values& a, const Values& b) {
  const double product = dot(a, b);
  const double of_a = dot(a, a) == 0 ? 1.0 : 1.0 - product / (2 * dot(a, a));
  const double of_b = dot(b, b) == 0 ? 1.0 : 1.0 - product / (2 * dot(b, b));
  Values result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = of_a * a[i] + of_b * b[i];
  return result;
}

// Along the tree that collective/adasum_weights.h documents.
inline Values adasum_reference(std::vector<Values> vectors) {
  const std::size_t power = std::bit_floor(vectors.size());
  for (std::size_t extra = power; extra < vectors.size(); ++extra) {
    vectors[extra - power] = combine(vectors[extra - power], vectors[extra]);
  }
  vectors.resize(power);
  while (vectors.size() > 1) {
    std::vector<Values> next;
    for (std::size_t i = 0; i < vectors.size(); i += 2) {
      next.push_back(combine(vectors[i], vectors[i + 1]));
    }
    vectors = next;
  }
  return vectors[0];
}

}  // namespace hvd::test
