// What is given to decoders by chance, one function for each: it takes any bytes and aborts, or is
// caught by a sanitizer, where a decoder lets something through.
#pragma once

#include <span>
#include <string_view>

#include "tree_script.h"

namespace hvd::fuzz {

struct Target {
  std::string_view name;
  void (*run)(std::span<const std::byte> bytes);
  std::vector<Bytes> (*seeds)();  // real ones
};

std::span<const Target> targets();
// Aborts where there is none.
const Target& target_of(std::string_view name);

}  // namespace hvd::fuzz
