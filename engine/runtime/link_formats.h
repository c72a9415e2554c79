// Which format a reduction has between hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/request.h"
#include "core/link_format.h"
#include "core/rounding.h"

namespace hvd {

// Equal on all ranks; where they are not, requests mismatch.
struct LinkFormats {
  LinkFormat as_set = LinkFormat::kExact;  // of reductions that ask for none
  std::uint64_t least_elements = 1024;  // of a tensor in a low-bit format; smaller ones are exact
  // Tensors whose names have one of these parts are exact. Case does not matter in ASCII.
  std::vector<std::string> exact_parts = {};
  Rounding rounding = {};  // to low-bit formats
  // Whether the engine adds what they leave out of a tensor to the next one of its name. This
  // rank's own affair.
  bool is_feeding_back = false;

  // What takes the place of the request's format. `name`: empty where it is not known.
  LinkFormat of(const Request& request, std::string_view name, bool is_engines) const;
  // Whether a tensor is exact in every format.
  bool is_exact(std::string_view name, std::uint64_t elements) const;
};

// Why a reduction cannot have the low-bit format that it asks for, or may get; none if it can, or
// asks for none. `is_engines`: the engine itself moves the data of this set.
std::optional<std::string> format_refusal(const Request& request, bool is_engines);

}  // namespace hvd
