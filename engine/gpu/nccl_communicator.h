// One rank's end of an NCCL communicator that does not block. A call may still be in progress when
// it returns. It is in progress while is_busy() is true.
//
// One thread at a time, with the communicator's device current. abort() ends all calls, also on the
// GPU.
#pragma once

#include <utility>

#include "core/clock.h"
#include "core/dtype.h"
#include "gpu/nccl_library.h"

namespace hvd {

class NcclCommunicator {
 public:
  // Starts to connect to the other ranks, which have the same `id`.
  NcclCommunicator(const CudaDriver& driver, const NcclLibrary& library, int device,
                   const nccl::UniqueId& id, int rank, int size);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Neither aborted nor left.
  bool is_open() const { return comm_ != nullptr; }
  // True while a call is in progress. Throws Error(kSystem) when something has failed, here or in
  // another rank's network.
  bool is_busy() const;
  // Ends at once. Calls on the GPU return without valid results.
  void abort() noexcept;
  // Leaves together with the other ranks; aborts when they take longer than `limit`.
  void leave(Nanoseconds limit) noexcept;

  template <typename... Parameters, typename... Arguments>
  void call(const NcclFunction<Parameters...>& function, Arguments... arguments) const {
    library_.check(function.call(arguments...), function.name, comm_);
  }
  // Puts a call into `stream`. The last parameters of the function are communicator and stream.
  template <typename... Parameters, typename... Arguments>
  void start(cuda::Stream stream, const NcclFunction<Parameters...>& function,
             Arguments... arguments) const {
    call(function, arguments..., comm_, stream);
  }
  // The same for bytes. No call if there are no bytes.
  void broadcast(const std::byte* from, std::byte* to, std::size_t size_bytes, int root,
                 cuda::Stream stream) const {
    if (size_bytes == 0) return;
    start(stream, functions().broadcast, from, to, size_bytes, nccl::DataType::kUint8, root);
  }
  void allgather(const std::byte* from, std::byte* to, std::size_t bytes_each,
                 cuda::Stream stream) const {
    start(stream, functions().all_gather, from, to, bytes_each, nccl::DataType::kUint8);
  }
  void send(const std::byte* from, std::size_t size_bytes, int peer, cuda::Stream stream) const {
    if (size_bytes == 0) return;
    start(stream, functions().send, from, size_bytes, nccl::DataType::kUint8, peer);
  }
  void receive(std::byte* to, std::size_t size_bytes, int peer, cuda::Stream stream) const {
    if (size_bytes == 0) return;
    start(stream, functions().receive, to, size_bytes, nccl::DataType::kUint8, peer);
  }
  const NcclFunctions& functions() const { return library_.functions(); }

 private:
  const CudaDriver& driver_;
  const NcclLibrary& library_;
  const int device_;
  nccl::Comm comm_ = nullptr;
};

// NCCL's name of an element type. REQUIRES: is_in_nccl(dtype).
nccl::DataType nccl_type_of(Dtype dtype);
bool is_in_nccl(Dtype dtype);

}  // namespace hvd
