// The attributes of a graph node, read once, when TensorFlow makes the node's kernel.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bindings/tensorflow/handles.h"
#include "control/request.h"

namespace hvd::tensorflow {

struct Spec {
  Request request;                 // of each tensor, without dtype and shape
  std::vector<std::string> names;  // one for a group, else one for each tensor
  bool is_group = false;
  bool is_blocking = false;  // the calling thread may wait, since it has no other work
  int process_set = 0;
};

// Null if an attribute is wrong; TensorFlow has the error then.
std::unique_ptr<const Spec> read_spec(Kind kind, TF_OpKernelConstruction* construction);

bool is_complex(TF_DataType type);
// The engine's dtype, of complex numbers that of their parts; none for one that the engine has not.
std::optional<Dtype> dtype_of(TF_DataType type);

}  // namespace hvd::tensorflow
