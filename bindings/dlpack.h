// The part of the DLPack ABI (version 1.x, https://dmlc.github.io/dlpack) that reads a tensor.
//
// A framework that offers `__dlpack_c_exchange_api__` on its tensor type lets native code see a
// tensor's address, dtype and shape in one C call, without a Python attribute and without a copy.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace hvd::dlpack {

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };
enum TypeCode : std::uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6
};

// Of an element type; its bits are those of its size.
constexpr TypeCode code_of(Dtype dtype) {
  if (dtype == Dtype::kBfloat16) return kBfloat;
  if (is_float(dtype)) return kFloat;
  if (dtype == Dtype::kBool) return kBool;
  return dtype == Dtype::kUint8 || dtype == Dtype::kUint16 ? kUint : kInt;
}

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dims_count;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null for a dense row-major tensor
  std::uint64_t byte_offset;
};

struct ExchangeApi {
  Version version;
  void* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_object;
  void* managed_tensor_to_object;
  int (*tensor_from_object)(void* object, Tensor* out);  // may be null; sets a Python error on -1
  // The stream of a device, of its type and number, on which the framework's next work goes.
  int (*current_work_stream)(std::int32_t type, std::int32_t id, void** out);
};

inline constexpr std::uint32_t kSupportedMajor = 1;
inline constexpr const char* kCapsuleName = "dlpack_exchange_api";

}  // namespace hvd::dlpack
