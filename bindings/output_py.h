// Results that the engine has allocated, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd {

void bind_output(nanobind::module_& module);

}  // namespace hvd
