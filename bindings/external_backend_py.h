// A carrier written in Python: horovod.backends.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "backend/carrier.h"

namespace hvd {

// Null for None. `carrier` has the methods of horovod.backends.engine_adapter.Carrier.
std::shared_ptr<Carrier> carrier_of(const nanobind::object& carrier);

}  // namespace hvd
