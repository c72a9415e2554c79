#include "bindings/tensorflow/job.h"

#include <utility>

#include "bindings/complex.h"
#include "bindings/error_names.h"
#include "bindings/submissions.h"
#include "bindings/tensorflow/port.h"

namespace hvd::tensorflow {

namespace {

int tensor_count(const Spec& spec, TF_OpKernelContext* context) {
  const Collective& collective = collective_of(spec.request.kind);
  if (!collective.has_tensors()) return 0;
  // The last inputs are the splits, if there are any, and the token.
  return TF_NumInputs(context) - (collective.has_splits() ? 2 : 1);
}

TensorHandle input(TF_OpKernelContext* context, int index, const Status& status) {
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, index, &tensor, status.get());
  return TensorHandle(tensor);
}

// The engine's memory as a tensor that frees it.
TensorHandle wrap(TF_DataType type, Output output, std::size_t size_bytes) {
  const std::vector<std::int64_t> shape = output.shape;
  auto owned = std::make_unique<OutputBytes>(std::move(output.bytes));
  const auto free_bytes = [](void*, std::size_t, void* argument) {
    delete static_cast<OutputBytes*>(argument);
  };
  std::byte* bytes = owned->get();
  return TensorHandle(TF_NewTensor(type, shape.data(), static_cast<int>(shape.size()), bytes,
                                   size_bytes, free_bytes, owned.release()));
}

}  // namespace

bool Job::prepare() {
  const int count = tensor_count(spec_, context_);
  const Collective& collective = collective_of(spec_.request.kind);
  if (!collective.has_tensors()) {
    requests_.push_back(spec_.request);
    tensors_.emplace_back();
    return true;
  }
  if (!names_fit(spec_.names.size(), spec_.is_group, static_cast<std::size_t>(count))) {
    return fail(TF_INVALID_ARGUMENT, std::string(collective.name) + ": " +
                                         std::to_string(spec_.names.size()) + " names for " +
                                         std::to_string(count) + " tensors");
  }
  for (int i = 0; i < count; ++i) {
    if (!add_input(i)) return false;
    if (collective.keeps_shape() && !add_output(i)) return false;
  }
  return !collective.has_splits() || add_splits();
}

bool Job::add_input(int index) {
  const Status status;
  TensorHandle tensor = input(context_, index, status);
  if (!status.ok()) return fail(status);
  Request request = spec_.request;
  const std::optional<Dtype> dtype = dtype_of(TF_TensorType(tensor.get()));
  const int dims = TF_NumDims(tensor.get());
  if (!dtype || dims > Request::kMaxDims) {
    return fail(TF_INVALID_ARGUMENT, name_of(request) + " '" + spec_.names.front() +
                                         "': the tensor has " + std::to_string(dims) +
                                         " dimensions; at most " +
                                         std::to_string(Request::kMaxDims) + " are supported");
  }
  request.dtype = *dtype;
  request.dims_count = dims;
  for (int i = 0; i < dims; ++i) {
    request.dims[static_cast<std::size_t>(i)] = TF_Dim(tensor.get(), i);
  }
  try {
    if (is_complex(TF_TensorType(tensor.get()))) make_complex(request);
  } catch (const Error& error) {
    return fail(TF_INVALID_ARGUMENT,
                name_of(request) + " '" + spec_.names.front() + "': " + error.what());
  }
  requests_.push_back(request);
  tensors_.push_back(
      {.in = static_cast<const std::byte*>(TF_TensorData(tensor.get())), .out = nullptr});
  inputs_.push_back(std::move(tensor));
  return true;
}

// Uses the input's own memory if no other operation needs it. Our handle counts as a use, so it is
// given up first.
bool Job::add_output(int index) {
  const Status status;
  const auto at = static_cast<std::size_t>(index);
  const Request& request = requests_[at];
  const int dims = TF_NumDims(inputs_[at].get());  // of complex numbers the engine has one more
  inputs_[at].reset();
  int forwarded = -1;
  outputs_.emplace_back(TF_ForwardInputOrAllocateOutput(
      context_, &index, 1, index, request.dims.data(), dims, &forwarded, status.get()));
  if (!status.ok()) return fail(status);
  tensors_[at].out = static_cast<std::byte*>(TF_TensorData(outputs_.back().get()));
  if (forwarded == index) return true;
  inputs_[at] = input(context_, index, status);
  return status.ok() || fail(status);
}

bool Job::add_splits() {
  const Status status;
  const TensorHandle splits = input(context_, 1, status);
  if (!status.ok()) return fail(status);
  const int dims = TF_NumDims(splits.get());
  if (dims == 0) return true;  // none are given
  const std::string title = name_of(spec_.request) + " '" + spec_.names.front() + "': splits ";
  if (dims != 1) {
    return fail(TF_INVALID_ARGUMENT,
                title + "must be an int32 vector, found " + std::to_string(dims) + " dimensions");
  }
  if (TF_Dim(splits.get(), 0) == 0) return fail(TF_INVALID_ARGUMENT, title + "has no entries");
  const auto* values = static_cast<const std::int32_t*>(TF_TensorData(splits.get()));
  splits_.assign(values, values + TF_Dim(splits.get(), 0));
  return true;
}

std::vector<Submission> Job::submissions() const {
  if (!collective_of(spec_.request.kind).has_tensors()) {
    return {{.name = {}, .requests = requests_, .tensors = tensors_, .splits = {}}};
  }
  return submissions_of(spec_.names, spec_.is_group, requests_, tensors_, splits_);
}

void Job::finish(EnginePort::Result result) {
  if (result.error) {
    attached_port().keep_failure(*result.error);
    fail(status_code_of(*result.error, TF_UNKNOWN), result.error->what());
  } else {
    set_produced(result.outputs);
  }
  inputs_.clear();
  outputs_.clear();
}

bool Job::set_produced(std::vector<Output>& outputs) {
  const Collective& collective = collective_of(spec_.request.kind);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool is_tensor = i < inputs_.size();
    const Dtype dtype = is_tensor ? requests_[i].dtype : Dtype::kInt32;
    const TF_DataType type = is_tensor ? TF_TensorType(inputs_[i].get()) : TF_INT32;
    if (!is_tensor && !collective.has_splits() && collective.has_tensors()) break;
    const std::size_t size_bytes = outputs[i].size_bytes(dtype);
    if (is_complex(type)) outputs[i].shape.pop_back();
    const TensorHandle tensor = wrap(type, std::move(outputs[i]), size_bytes);
    const Status status;
    TF_SetOutput(context_, static_cast<int>(i), tensor.get(), status.get());
    if (!status.ok()) return fail(status);
  }
  return true;
}

void Job::cancel() { fail(TF_CANCELLED, "interrupted by a signal"); }

bool Job::fail(TF_Code code, const std::string& text) { return fail(Status(code, text)); }

bool Job::fail(const Status& status) {
  TF_OpKernelContext_Failure(context_, status.get());
  return false;
}

}  // namespace hvd::tensorflow
