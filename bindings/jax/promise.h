// XLA's future for the side that completes it: a call's result that comes later, maybe from another
// thread.
#pragma once

#include "bindings/jax/c_api.h"
#include "core/error.h"

namespace hvd::jax {

// An error of the engine, as XLA passes it on.
XLA_FFI_Error* make_error(const XLA_FFI_Api* api, const Error& error);

// Call either available() or fail(), exactly once. Copies are for the same future.
class Promise {
 public:
  explicit Promise(const XLA_FFI_Api* api);

  // The future for XLA; null if it could not be made, then error() has the reason.
  XLA_FFI_Future* future() const { return future_; }
  XLA_FFI_Error* error() const { return error_; }
  void available() const;
  void fail(const Error& error) const;

 private:
  const XLA_FFI_Api* api_;
  XLA_FFI_Future* future_ = nullptr;
  XLA_FFI_Error* error_ = nullptr;
};

}  // namespace hvd::jax
