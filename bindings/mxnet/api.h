// The part of MXNet 1.9 that we use, declared here so that building needs no MXNet: its C API, and
// the layouts of its arguments for asynchronous operations. Functions are found by name in the
// library that the process has open.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "bindings/dlpack.h"

namespace hvd::mxnet {

using Array = void*;  // an NDArrayHandle: a pointer to MXNet's NDArray

// An asynchronous operation calls it when it is done, from any thread, exactly once. MXNet's
// pointer to it is valid only during the operation's function, so we keep a copy.
struct OnComplete {
  void (*callback)(void* engine, void* param, const std::runtime_error* error);
  void* engine;
  void* param;

  // `error`: null if all is well; arrays that were to be written get a copy.
  void operator()(const std::runtime_error* error) const { callback(engine, param, error); }
};

// DLPack, as MXNet 1.9 reads it.
struct ManagedTensor {
  dlpack::Tensor tensor;
  void* owner;
  void (*deleter)(ManagedTensor*);
};

// Functions of the C API return 0, or another number and last_error() has the reason.
struct Api {
  // Throws std::runtime_error when the library, an open one, is no MXNet 1.9.
  explicit Api(void* library);

  // Throws std::runtime_error with MXNet's text if `status` is not 0.
  void check(int status) const;

  int (*push_async)(void (*run)(void* context, void* on_complete, void* param), void* param,
                    void (*deleter)(void* param), const dlpack::Device* device,
                    const Array* read_arrays, int read_count, const Array* written_arrays,
                    int written_count, const int* property, int priority, const char* name,
                    bool is_wait) = nullptr;
  const char* (*last_error)() = nullptr;
  int (*alias)(Array array, Array* alias) = nullptr;  // another handle of the same memory
  int (*create_none)(Array* array) = nullptr;
  int (*free)(Array array) = nullptr;
  int (*shape)(Array array, int* dims_count, const std::int64_t** dims) = nullptr;
  int (*data)(Array array, void** data) = nullptr;
  int (*from_dlpack)(ManagedTensor* tensor, bool is_transient, Array* array) = nullptr;

  // Null in builds without oneDNN, which may keep an array in its own layout. reorder_memory
  // changes the memory of an array to the usual layout. construct_reordered makes an array in that
  // layout at `result`.
  void (*reorder_memory)(void* memory) = nullptr;
  void* (*construct_reordered)(Array result, const void* array) = nullptr;
};

// The memory of an array, for comparisons: MXNet orders accesses to it. A pointer to it is the
// first member of an NDArray.
inline void* memory_of(Array array) { return *static_cast<void**>(array); }

}  // namespace hvd::mxnet
