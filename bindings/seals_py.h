// What seals the connections between hosts, for Python, which makes them and their keys.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "transport/seal.h"

namespace hvd {

// A link's seals on their way from those who agreed on the keys to the engine.
struct HeldSeals {
  std::shared_ptr<LinkSeals> seals;
};

// Throws nanobind::value_error for None, where a link must have some.
std::shared_ptr<LinkSeals> seals_of(const HeldSeals* held);

void bind_seals(nanobind::module_& module);

}  // namespace hvd
