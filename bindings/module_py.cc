// The extension module horovod._native.
#include <nanobind/nanobind.h>

#include "bindings/seals_py.h"
#include "core/error.h"

namespace nb = nanobind;

namespace hvd {

void bind_devices(nb::module_& module);
void bind_dump_signal(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_port(nb::module_& module);

namespace {

// Engine errors become the exceptions of horovod.errors, which is imported when the first one
// comes.
void raise(const Error& error) {
  const std::string text = error.what();
  // Texts that crossed shared memory may be cut in the middle of a character.
  const nb::object message =
      nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  const nb::object exception = nb::module_::import_("horovod.errors")
                                   .attr("from_code")(static_cast<int>(error.code()), message);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}

}  // namespace

}  // namespace hvd

NB_MODULE(_native, module) {
  module.doc() = "The C++ engine; see bindings/. Its numbers are those of ``horovod.operations``.";
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
  hvd::bind_devices(module);  // what others refer to
  hvd::bind_seals(module);
  hvd::bind_dump_signal(module);
  hvd::bind_engine(module);
  hvd::bind_port(module);
}
