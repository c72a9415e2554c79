// The table of collectives, for Python's own table to be checked against.
#include <nanobind/nanobind.h>

#include "core/collectives.h"

namespace nb = nanobind;

namespace hvd {

void bind_collectives(nb::module_& module) {
  nb::class_<Collective>(module, "Collective", "A row of the table of collectives.")
      .def_prop_ro("kind", [](const Collective& self) { return static_cast<int>(self.kind); })
      .def_ro("name", &Collective::name)
      .def_ro("is_reduction", &Collective::is_reduction)
      .def_ro("has_root", &Collective::has_root)
      .def_prop_ro("has_splits", &Collective::has_splits)
      .def_prop_ro("has_tensors", &Collective::has_tensors)
      .def_prop_ro("keeps_shape", &Collective::keeps_shape)
      .def_prop_ro("rows_may_differ",
                   [](const Collective& self) { return rows_may_differ(self.kind); })
      .def_ro("may_be_grouped", &Collective::may_be_grouped)
      .def_ro("is_differentiable", &Collective::is_differentiable);
  nb::list rows;
  for (const Collective& row : kCollectives) {
    rows.append(nb::cast(&row, nb::rv_policy::reference));
  }
  module.attr("COLLECTIVES") = nb::tuple(rows);
}

}  // namespace hvd
