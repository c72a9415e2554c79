// Ways to cut allreduces, far apart.
#pragma once

#include <cstddef>
#include <iterator>

#include "core/tuning.h"

namespace hvd::test {

// Another one for each bucket of a row.
inline AllreduceCut cut_of(std::size_t bucket) {
  constexpr AllreduceCut kCuts[] = {
      {},
      {.block_kib = 64, .small_kib = 0, .small_between_hosts_kib = 0},
      {.block_kib = 1024, .small_kib = 2048, .small_between_hosts_kib = 8192},
      {.block_kib = 8192, .small_kib = 64, .small_between_hosts_kib = 16},
      {.block_kib = 200, .small_kib = 64, .small_between_hosts_kib = 64}};
  return kCuts[bucket % std::size(kCuts)];
}

}  // namespace hvd::test
