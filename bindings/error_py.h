// An engine error as the exception of horovod.errors that stands for it.
#pragma once

#include <nanobind/nanobind.h>

#include "core/error.h"

namespace hvd {

// Under the GIL. horovod.errors is imported when the first error comes.
nanobind::object to_python(const Error& error);

}  // namespace hvd
