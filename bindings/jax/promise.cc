#include "bindings/jax/promise.h"

#include "bindings/error_names.h"

namespace hvd::jax {

XLA_FFI_Error* make_error(const XLA_FFI_Api* api, const Error& error) {
  const std::string text = text_for_python(error);
  XLA_FFI_Error_Create_Args args{.message = text.c_str(),
                                 .errc = status_code_of(error, XLA_FFI_Error_Code_INTERNAL)};
  return api->Error_Create(&args);
}

Promise::Promise(const XLA_FFI_Api* api) : api_(api) {
  XLA_FFI_Future_Create_Args args;
  error_ = api_->Future_Create(&args);
  if (error_ == nullptr) future_ = args.future;
}

void Promise::available() const {
  XLA_FFI_Future_SetAvailable_Args args{.future = future_};
  api_->Future_SetAvailable(&args);
}

void Promise::fail(const Error& error) const {
  XLA_FFI_Future_SetError_Args args{.future = future_, .error = make_error(api_, error)};
  api_->Future_SetError(&args);
}

}  // namespace hvd::jax
