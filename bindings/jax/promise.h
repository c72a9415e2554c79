// XLA's future as its owner sees it: a call's result that comes later, maybe from another thread.
#pragma once

#include <string>

#include "bindings/jax/c_api.h"
#include "core/error.h"

namespace hvd::jax {

XLA_FFI_Error* make_error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const std::string& text);
// An error of the engine, as XLA passes it on.
XLA_FFI_Error_Code code_of(const Error& error);
std::string text_of(const Error& error);

// To be kept exactly once, by available() or fail(). Copies stand for the same future.
class Promise {
 public:
  explicit Promise(const XLA_FFI_Api* api);

  // What the handler hands to XLA; null when there is none, and then `error` says why.
  XLA_FFI_Future* future() const { return future_; }
  XLA_FFI_Error* error() const { return error_; }
  void available() const;
  void fail(XLA_FFI_Error_Code code, const std::string& text) const;

 private:
  const XLA_FFI_Api* api_;
  XLA_FFI_Future* future_ = nullptr;
  XLA_FFI_Error* error_ = nullptr;
};

}  // namespace hvd::jax
