// The seals of connections between hosts, for Python, which makes the connections and their keys.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "transport/seal.h"

namespace hvd {

// A link's seals, between the agreement on keys and the engine.
struct HeldSeals {
  std::shared_ptr<LinkSeals> seals;
};

// Throws nanobind::value_error for None: a link between leaders must have seals.
std::shared_ptr<LinkSeals> seals_of(const HeldSeals* held);

void bind_seals(nanobind::module_& module);

}  // namespace hvd
