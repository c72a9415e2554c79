// Owners for what TensorFlow's C API hands out.
#pragma once

#include <memory>
#include <string>

#include "bindings/tensorflow/c_api.h"

namespace hvd::tensorflow {

struct DeleteStatus {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
struct DeleteShape {
  void operator()(TF_ShapeHandle* shape) const { TF_DeleteShapeHandle(shape); }
};
using TensorHandle = std::unique_ptr<TF_Tensor, DeleteTensor>;
using ShapeHandle = std::unique_ptr<TF_ShapeHandle, DeleteShape>;

class Status {
 public:
  Status() : status_(TF_NewStatus()) {}
  Status(TF_Code code, const std::string& text) : Status() {
    TF_SetStatus(get(), code, text.c_str());
  }
  TF_Status* get() const { return status_.get(); }
  bool ok() const { return TF_GetCode(get()) == TF_OK; }

 private:
  std::unique_ptr<TF_Status, DeleteStatus> status_;
};

}  // namespace hvd::tensorflow
