#include "bindings/error_py.h"

#include <nanobind/stl/vector.h>

#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

namespace {

// Texts from shared memory may be cut in the middle of a character.
nb::object text_of(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

}  // namespace

nb::object to_python(const Error& error) {
  const Subject& subject = error.subject();
  return nb::module_::import_("horovod.errors")
      .attr("from_code")(static_cast<int>(error.code()), text_of(error.what()),
                         "ranks"_a = subject.ranks, "host"_a = text_of(subject.host),
                         "operation"_a = text_of(subject.operation));
}

}  // namespace hvd
