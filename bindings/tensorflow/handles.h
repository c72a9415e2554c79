// Owners for what TensorFlow's C API hands out.
#pragma once

#include <memory>
#include <string>

#include "bindings/tensorflow/c_api.h"

namespace hvd::tensorflow {

template <auto kDelete>
struct Delete {
  void operator()(auto* handle) const { kDelete(handle); }
};
using TensorHandle = std::unique_ptr<TF_Tensor, Delete<TF_DeleteTensor>>;
using ShapeHandle = std::unique_ptr<TF_ShapeHandle, Delete<TF_DeleteShapeHandle>>;

class Status {
 public:
  Status() : status_(TF_NewStatus()) {}
  Status(TF_Code code, const std::string& text) : Status() {
    TF_SetStatus(get(), code, text.c_str());
  }
  TF_Status* get() const { return status_.get(); }
  bool ok() const { return TF_GetCode(get()) == TF_OK; }

 private:
  std::unique_ptr<TF_Status, Delete<TF_DeleteStatus>> status_;
};

}  // namespace hvd::tensorflow
