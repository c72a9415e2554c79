// Which format a reduction has between hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "control/request.h"
#include "core/link_format.h"

namespace hvd {

// Equal on all ranks; where they are not, requests mismatch.
struct LinkFormats {
  LinkFormat as_set = LinkFormat::kExact;  // of reductions that ask for none
  std::uint64_t least_elements = 1024;  // of a tensor in a low-bit format; smaller ones are exact

  // What takes the place of the request's format.
  LinkFormat of(const Request& request, bool is_engines) const;
};

// Why a reduction cannot have the low-bit format that it asks for; none if it can, or asks for
// none. `is_engines`: the engine itself moves the data of this set.
std::optional<std::string> format_refusal(const Request& request, bool is_engines);

}  // namespace hvd
