#include "bindings/mxnet/api.h"

#include <dlfcn.h>

#include <string>

namespace hvd::mxnet {

namespace {

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

template <typename Function>
void require(void* library, const char* name, Function*& function) {
  find(library, name, function);
  if (function == nullptr) throw std::runtime_error("libmxnet has no " + std::string(name));
}

}  // namespace

Api::Api(void* library) {
  require(library, "MXEnginePushAsyncND", push_async);
  require(library, "MXGetLastError", last_error);
  require(library, "MXShallowCopyNDArray", alias);
  require(library, "MXNDArrayCreateNone", create_none);
  require(library, "MXNDArrayFree", free);
  require(library, "MXNDArrayGetShapeEx64", shape);
  require(library, "MXNDArrayGetData", data);
  require(library, "MXNDArrayFromDLPackEx", from_dlpack);
  find(library, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv", reorder_memory);
  find(library, "_ZNK5mxnet7NDArray15Reorder2DefaultEv", construct_reordered);
}

void Api::check(int status) const {
  if (status != 0) throw std::runtime_error(last_error());
}

}  // namespace hvd::mxnet
