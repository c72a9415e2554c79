// One execution of a call in a compiled program: its buffers for the engine, and its results.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bindings/engine_port.h"
#include "bindings/jax/c_api.h"

namespace hvd::jax {

// Copies results that the engine has allocated to where XLA wants them.
class Writer {
 public:
  virtual ~Writer() = default;
  virtual void copy(void* to, Output& from, std::size_t size_bytes) = 0;
  virtual void clear(void* at, std::size_t size_bytes) = 0;
};

class HostWriter final : public Writer {
 public:
  void copy(void* to, Output& from, std::size_t size_bytes) override;
  void clear(void* at, std::size_t size_bytes) override;
};

// Buffers are read and written in place. XLA keeps them until the call's future is done.
class Job {
 public:
  // Reads the call. If it cannot run, refusal() says why.
  explicit Job(const XLA_FFI_CallFrame* frame);

  const std::optional<std::string>& refusal() const { return refusal_; }
  int process_set() const { return process_set_; }
  // Its buffers are on this GPU; in host memory otherwise.
  void place_on(int device, StreamDependencyPtr dependency);
  // What to submit; valid as long as the job.
  std::vector<Submission> submissions() const;
  // Copies the results to XLA's buffers, or clears the buffers if the program wants zeros. Returns
  // the reason if that is impossible.
  std::optional<std::string> store(std::vector<Output>& outputs, Writer& writer) const;

 private:
  // Returns the number of the kind, which is not checked.
  std::int64_t read_attributes(const XLA_FFI_Attrs& attributes);
  // `errors`: where those of a low-bit format go; null: nowhere.
  void add_tensor(const XLA_FFI_Buffer& in, const XLA_FFI_Buffer& out,
                  const XLA_FFI_Buffer* errors);

  Request request_;  // of each tensor, without dtype and shape
  int process_set_ = 0;
  bool is_zeroed_ = false;  // the program wants zeros: this rank takes part for the others only
  std::vector<std::string> names_;  // see submissions_of()
  std::string keeps_errors_;        // '1' for tensors whose errors are results, too; or empty
  std::vector<Request> requests_;
  std::vector<Tensor> tensors_;
  std::vector<const XLA_FFI_Buffer*> results_;
  StreamDependencyPtr dependency_;
  std::optional<std::string> refusal_;
};

}  // namespace hvd::jax
