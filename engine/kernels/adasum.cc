#include "kernels/adasum.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/kernel_table.h"

namespace hvd {
namespace {

constexpr std::size_t kScratchDoubles = 2048;  // half of a small L1 cache

}  // namespace

void accumulate_gram_with(const KernelTable& table, Dtype dtype,
                          std::span<const std::byte* const> sources, std::size_t count,
                          double* gram) {
  const std::size_t fitting = kScratchDoubles / sources.size() / kGramLanes * kGramLanes;
  const std::size_t chunk = std::max(fitting, kGramLanes);
  std::array<double, kScratchDoubles> scratch;
  std::vector<double> large_scratch;  // for very many sources
  if (fitting == 0) large_scratch.resize(sources.size() * chunk);
  table.grams[static_cast<int>(dtype)](
      {.sources = sources.data(),
       .source_count = sources.size(),
       .count = count,
       .gram = gram,
       .scratch = fitting == 0 ? large_scratch.data() : scratch.data(),
       .chunk = chunk});
}

void accumulate_gram(Dtype dtype, std::span<const std::byte* const> sources, std::size_t count,
                     double* gram) {
  accumulate_gram_with(best_kernel_table(), dtype, sources, count, gram);
}

}  // namespace hvd
