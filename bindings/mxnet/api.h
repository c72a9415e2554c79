// The part of MXNet 1.9 that we use, declared here so that building needs no MXNet: its C API, and
// the layouts of what it hands to asynchronous operations. Functions are found by name in the
// library that the process has open.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace hvd::mxnet {

using Array = void*;  // an NDArrayHandle: a pointer to MXNet's NDArray

// By calling it an asynchronous operation says that it is done, from any thread, exactly once.
// MXNet hands out a pointer that is valid during the operation's function only, so we keep a copy.
struct OnComplete {
  void (*callback)(void* engine, void* param, const std::runtime_error* error);
  void* engine;
  void* param;

  // `error`: null if all is well; arrays that were to be written get a copy.
  void operator()(const std::runtime_error* error) const { callback(engine, param, error); }
};

struct Context {
  std::int32_t device_type = 1;  // CPU
  std::int32_t device_id = 0;
};

// DLPack, as MXNet 1.9 reads it.
struct DlpackTensor {
  void* data;
  Context context;
  std::int32_t dims_count;
  std::uint8_t type_code;
  std::uint8_t type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // null: compact
  std::uint64_t byte_offset;
  void* owner;
  void (*deleter)(DlpackTensor*);
};

// Functions of the C API return 0, or else last_error() says why.
struct Api {
  // Throws std::runtime_error when the library, an open one, is no MXNet 1.9.
  explicit Api(void* library);

  // Throws std::runtime_error with MXNet's text if `status` is not 0.
  void check(int status) const;

  int (*push_async)(void (*run)(void* context, void* on_complete, void* param), void* param,
                    void (*deleter)(void* param), const Context* context, const Array* read_arrays,
                    int read_count, const Array* written_arrays, int written_count,
                    const int* property, int priority, const char* name, bool is_wait) = nullptr;
  const char* (*last_error)() = nullptr;
  int (*alias)(Array array, Array* alias) = nullptr;  // another handle of the same memory
  int (*create_none)(Array* array) = nullptr;
  int (*free)(Array array) = nullptr;
  int (*shape)(Array array, int* dims_count, const std::int64_t** dims) = nullptr;
  int (*data)(Array array, void** data) = nullptr;
  int (*from_dlpack)(DlpackTensor* tensor, bool is_transient, Array* array) = nullptr;

  // Of builds with oneDNN, which may keep an array in a layout of its own; else null. Put the
  // memory of an array into the usual layout; construct an array in that layout at `result`.
  void (*reorder_memory)(void* memory) = nullptr;
  void* (*construct_reordered)(Array result, const void* array) = nullptr;
};

// Tells whether arrays share memory that MXNet orders accesses to: a pointer to it is the first
// thing in an NDArray.
inline void* memory_of(Array array) { return *static_cast<void**>(array); }

}  // namespace hvd::mxnet
