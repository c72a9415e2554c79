// Results of operations that no thread waits for, for a thread of Python that hands them out.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd {

void bind_completions(nanobind::module_& module);

}  // namespace hvd
