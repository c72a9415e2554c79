// Two passes over the same chunks, in a fixed order that all ranks know: the second pass follows
// the first at a distance of `lead` chunks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvd {

struct Turn {
  bool is_second = false;
  std::uint32_t chunk = 0;
};

// The turn number `index` of 2 * chunks: for a lead of 2, first 0, 1; then second 0, first 2,
// second 1, first 3 ...
constexpr Turn turn_of(std::uint32_t index, std::uint32_t chunks, std::uint32_t lead) {
  lead = std::min(lead, chunks);
  if (index < lead) return {.is_second = false, .chunk = index};
  const std::uint32_t beyond = index - lead;
  const std::uint32_t pairs = chunks - lead;
  if (beyond >= 2 * pairs) return {.is_second = true, .chunk = beyond - pairs};
  const bool is_second = beyond % 2 == 0;
  return {.is_second = is_second, .chunk = beyond / 2 + (is_second ? 0 : lead)};
}

}  // namespace hvd
