// The extension module horovod._native.
#include <nanobind/nanobind.h>

#include "bindings/completions_py.h"
#include "bindings/error_py.h"
#include "bindings/seals_py.h"
#include "core/error.h"

namespace nb = nanobind;

namespace hvd {

void bind_collectives(nb::module_& module);
void bind_devices(nb::module_& module);
void bind_dump_signal(nb::module_& module);
void bind_config(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_output(nb::module_& module);
void bind_plans(nb::module_& module);
void bind_port(nb::module_& module);

namespace {

void raise(const Error& error) {
  const nb::object exception = to_python(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}

}  // namespace

}  // namespace hvd

NB_MODULE(_native, module) {
  module.doc() =
      "The C++ engine; see bindings/. Its numbers are those of ``horovod.core.operations``.";
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const hvd::Error& error) {
          hvd::raise(error);
        }
      },
      nullptr);
  // At exit, daemon threads and forked children hold engines for good reasons.
  nb::set_leak_warnings(false);
  hvd::bind_collectives(module);
  hvd::bind_devices(module);  // the others refer to it
  hvd::bind_seals(module);
  hvd::bind_dump_signal(module);
  hvd::bind_config(module);
  hvd::bind_output(module);
  hvd::bind_plans(module);
  hvd::bind_engine(module);
  hvd::bind_completions(module);
  hvd::bind_port(module);
}
