// Results that the engine has allocated, for Python.
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bindings/dlpack.h"
#include "core/dtype.h"
#include "core/memory.h"
#include "runtime/output.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

void bind_output(nb::module_& module);

namespace {

// Starts to copy a result on a GPU to other memory of the same GPU, in a stream of that GPU.
void copy_output(Output& output, std::uintptr_t to, std::size_t size_bytes, std::uintptr_t stream) {
  output.block->copy_to(to, size_bytes, reinterpret_cast<cuda::Stream>(stream));
}

// The engine's host memory as an array of Python. It is freed with the last array that uses it.
template <typename... Format>
nb::typed<nb::object, nb::any> as_array(Output& output, int dtype_code) {
  const auto dtype = static_cast<Dtype>(dtype_code);
  const std::vector<std::size_t> shape(output.shape.begin(), output.shape.end());
  const nb::dlpack::dtype type{.code = static_cast<std::uint8_t>(dlpack::code_of(dtype)),
                               .bits = static_cast<std::uint8_t>(8 * size_of(dtype)),
                               .lanes = 1};
  std::byte* bytes = output.bytes.get();
  auto owned = std::make_unique<OutputBytes>(std::move(output.bytes));
  const nb::capsule owner(owned.get(),
                          [](void* data) noexcept { delete static_cast<OutputBytes*>(data); });
  static_cast<void>(owned.release());
  return nb::cast(nb::ndarray<Format...>(bytes, shape.size(), shape.data(), owner, nullptr, type));
}

}  // namespace

void bind_output(nb::module_& module) {
  nb::class_<Output>(module, "Output")
      .def_prop_ro("shape", [](const Output& output) { return output.shape; })
      .def_prop_ro(
          "device",
          [](const Output& output) {
            return output.block == nullptr ? kHostDevice : output.block->device;
          },
          "-1 for host memory, else CUDA's number of the GPU.")
      .def("copy_to", &copy_output, "address"_a, "size_bytes"_a, "stream"_a,
           "Start copying a result on a GPU to memory of the same one, in a stream of it.")
      .def("as_numpy", &as_array<nb::numpy>, "dtype"_a)
      .def("as_dlpack", &as_array<>, "dtype"_a);
}

}  // namespace hvd
