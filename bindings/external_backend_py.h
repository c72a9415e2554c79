// A data plane written in Python: horovod.backends.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "backend/data_plane.h"

namespace hvd {

// Null for None. `plane` has the methods of horovod.backends.data_plane.EngineAdapter.
std::shared_ptr<DataPlane> data_plane_of(const nanobind::object& plane);

}  // namespace hvd
