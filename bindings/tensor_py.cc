#include "bindings/tensor_py.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "bindings/complex.h"

namespace nb = nanobind;

namespace hvd {

namespace {

Error invalid(const std::string& what) { return Error(ErrorCode::kInvalidArgument, what); }

// Of complex numbers: that of their parts.
Dtype dtype_of(const dlpack::DataType& type) {
  const bool is_complex = type.code == dlpack::kComplex;
  const auto code = is_complex ? dlpack::kFloat : static_cast<dlpack::TypeCode>(type.code);
  const std::size_t bits = is_complex ? type.bits / 2U : type.bits;
  for (int number = 0; number < kDtypeCount; ++number) {
    const auto dtype = static_cast<Dtype>(number);
    if (code == dlpack::code_of(dtype) && bits == 8 * size_of(dtype)) return dtype;
  }
  throw invalid("the tensor's dtype is not supported (DLPack code " + std::to_string(type.code) +
                ", " + std::to_string(type.bits) +
                " bits); supported are uint8, uint16, int8, int16, int32, int64, "
                "float16, bfloat16, float32, float64, bool and complex numbers");
}

int device_of(const dlpack::Device& device) {
  if (device.type == dlpack::kCpu || device.type == dlpack::kCudaHost) return kHostDevice;
  if (device.type == dlpack::kCuda) return device.id;
  throw invalid(
      "the tensor is neither in host memory nor on a CUDA GPU; move it with .cpu() first");
}

bool is_dense(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  bool has_dense_strides = true;
  for (int i = tensor.dims_count - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) has_dense_strides = false;
    expected *= tensor.shape[i];
  }
  return has_dense_strides;
}

// Its memory holds the numbers whose conjugates it means.
bool is_lazy_conjugate(nb::handle tensor) {
  return nb::hasattr(tensor, "is_conj") && nb::cast<bool>(tensor.attr("is_conj")());
}

}  // namespace

TensorReader::TensorReader(nb::handle capsule, nb::callable explain)
    : api_(static_cast<const dlpack::ExchangeApi*>(
          PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsuleName))),
      explain_(explain.release()) {
  if (api_ == nullptr) throw nb::python_error();
  if (api_->version.major != dlpack::kSupportedMajor || api_->tensor_from_object == nullptr) {
    throw nb::value_error("the DLPack exchange table is of another version");
  }
}

TensorReader::Located TensorReader::read(nb::handle object, Request& request) const {
  dlpack::Tensor tensor{};
  if (api_->tensor_from_object(object.ptr(), &tensor) != 0) throw unreadable(object);
  const int device = device_of(tensor.device);
  if (!is_dense(tensor)) {
    throw invalid("the tensor is not contiguous; pass tensor.contiguous()");
  }
  if (tensor.dims_count > Request::kMaxDims) {
    throw invalid("the tensor has " + std::to_string(tensor.dims_count) + " dimensions; at most " +
                  std::to_string(Request::kMaxDims) + " are supported");
  }
  request.dtype = dtype_of(tensor.dtype);
  request.dims_count = tensor.dims_count;
  std::copy_n(tensor.shape, tensor.dims_count, request.dims.begin());
  if (tensor.dtype.code == dlpack::kComplex) {
    if (is_lazy_conjugate(object)) {
      throw invalid("the tensor is the conjugate of its memory; pass tensor.resolve_conj()");
    }
    make_complex(request);
  }
  return {.address = static_cast<std::byte*>(tensor.data) + tensor.byte_offset, .device = device};
}

// Replaces the framework's own exception by our error.
Error TensorReader::unreadable(nb::handle object) const {
  nb::python_error error;
  if (!error.matches(PyExc_Exception)) throw error;
  if (const nb::object known = explain_(object); !known.is_none()) {
    return invalid(nb::cast<std::string>(known));
  }
  const std::string text = nb::str(error.value()).c_str();
  return invalid("expected a dense tensor in host memory or on a GPU, found " +
                 std::string(nb::type_name(object.type()).c_str()) + " (" +
                 text.substr(0, text.find('\n')) + ")");
}

// The table belongs to the framework, and stays valid.
StreamDependency::CurrentStream TensorReader::current_stream() const {
  return [api = api_](int device) -> cuda::Stream {
    void* stream = nullptr;
    if (api->current_work_stream == nullptr ||
        api->current_work_stream(dlpack::kCuda, device, &stream) != 0) {
      PyErr_Clear();
      throw Error(ErrorCode::kSystem, "the framework does not say which stream of GPU " +
                                          std::to_string(device) + " it uses");
    }
    return static_cast<cuda::Stream>(stream);
  };
}

}  // namespace hvd
