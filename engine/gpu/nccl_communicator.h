// One rank's end of an NCCL communicator that does not block: what is started may still be in
// progress when a call returns, so ask until it is not.
//
// One thread at a time, on whose device it was made; abort() ends what is under way, on the GPU
// too.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "core/clock.h"
#include "core/dtype.h"
#include "gpu/nccl_library.h"

namespace hvd {

class NcclCommunicator {
 public:
  // Starts to meet the others, who give the same `id`.
  NcclCommunicator(const CudaDriver& driver, const NcclLibrary& library, int device,
                   const nccl::UniqueId& id, int rank, int size);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Not aborted, and not left.
  bool is_open() const { return comm_ != nullptr; }
  // True while a call is in progress. Throws Error(kSystem) when something has failed, here or in
  // another rank's network.
  bool is_busy() const;
  // Ends all at once. Calls on the GPU return, their results are worthless.
  void abort() noexcept;
  // Leaves together with the others, who are given `limit` for it; otherwise aborts.
  void leave(Nanoseconds limit) noexcept;

  template <typename... Parameters, typename... Arguments>
  void call(const NcclFunction<Parameters...>& function, Arguments... arguments) const {
    library_.check(function.call(arguments...), function.name, comm_);
  }
  const NcclFunctions& functions() const { return library_.functions(); }
  nccl::Comm get() const { return comm_; }
  // A sum of what is multiplied by `factor` before, for floats; kept for the next time.
  nccl::RedOp scaled_sum(Dtype dtype, double factor);

 private:
  static constexpr std::size_t kMostOps = 64;

  void forget_ops();

  const CudaDriver& driver_;
  const NcclLibrary& library_;
  const int device_;
  nccl::Comm comm_ = nullptr;
  std::map<std::pair<Dtype, double>, nccl::RedOp> ops_;
};

// What NCCL calls an element type. REQUIRES: is_in_nccl(dtype).
nccl::DataType nccl_type_of(Dtype dtype);
bool is_in_nccl(Dtype dtype);
// Can `factor` be said in the dtype's own numbers, without being lost?
bool is_factor_of(Dtype dtype, double factor);

}  // namespace hvd
