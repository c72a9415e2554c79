#include "bindings/jax/promise.h"

#include "bindings/error_names.h"

namespace hvd::jax {

XLA_FFI_Error* make_error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code,
                          const std::string& text) {
  XLA_FFI_Error_Create_Args args{.struct_size = sizeof(args),
                                 .extension_start = nullptr,
                                 .message = text.c_str(),
                                 .errc = code};
  return api->Error_Create(&args);
}

XLA_FFI_Error_Code code_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    case ErrorCode::kMismatch:
      return XLA_FFI_Error_Code_FAILED_PRECONDITION;
    case ErrorCode::kAborted:
      return XLA_FFI_Error_Code_ABORTED;
    default:
      return XLA_FFI_Error_Code_INTERNAL;
  }
}

std::string text_of(const Error& error) {
  return python_name_of(error) + std::string(": ") + error.what();
}

Promise::Promise(const XLA_FFI_Api* api) : api_(api) {
  XLA_FFI_Future_Create_Args args{
      .struct_size = sizeof(args), .extension_start = nullptr, .future = nullptr};
  error_ = api_->Future_Create(&args);
  if (error_ == nullptr) future_ = args.future;
}

void Promise::available() const {
  XLA_FFI_Future_SetAvailable_Args args{
      .struct_size = sizeof(args), .extension_start = nullptr, .future = future_};
  api_->Future_SetAvailable(&args);
}

void Promise::fail(XLA_FFI_Error_Code code, const std::string& text) const {
  XLA_FFI_Future_SetError_Args args{.struct_size = sizeof(args),
                                    .extension_start = nullptr,
                                    .future = future_,
                                    .error = make_error(api_, code, text)};
  api_->Future_SetError(&args);
}

}  // namespace hvd::jax
