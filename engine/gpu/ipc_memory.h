// GPU memory that processes of one host share (CUDA IPC). Each process exports its own memory,
// which only this process writes, and opens the memory of the others.
//
// Only memory that the engine allocates for this is exported. A framework may have an allocator
// with memory that CUDA cannot export. Also, other processes would still use its memory after it is
// freed.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "gpu/cuda_objects.h"

namespace hvd {

class IpcMemory final : public DeviceObject {
 public:
  // Throws Error(kSystem) where there is no such memory, or no IPC.
  IpcMemory(const CudaDriver& driver, int device, std::size_t size_bytes);
  ~IpcMemory();

  cuda::Address address() const { return address_; }
  const cuda::IpcHandle& handle() const { return handle_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  const std::size_t size_bytes_;
  cuda::Address address_ = 0;
  cuda::IpcHandle handle_{};
};

// Memory of another process, open in this one.
class PeerMemory final : public DeviceObject {
 public:
  // `device`: the GPU that uses it. Throws Error(kSystem) if that is impossible.
  PeerMemory(const CudaDriver& driver, int device, const cuda::IpcHandle& handle);
  // REQUIRES: no work on the GPU uses it.
  ~PeerMemory();

  cuda::Address address() const { return address_; }

 private:
  cuda::Address address_ = 0;
};

// Own exported memory, for worlds and process sets to use one after the other. It is kept until the
// process ends: a slow peer may still have it open when a world has ended.
class IpcMemories : public std::enable_shared_from_this<IpcMemories> {
 public:
  explicit IpcMemories(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}

  // Any thread. Throws as IpcMemory does.
  std::shared_ptr<IpcMemory> take(int device, std::size_t size_bytes);
  // Keeps an object until the process ends: the GPU may use it until then.
  static void keep(std::shared_ptr<void> kept);

 private:
  void give_back(std::unique_ptr<IpcMemory> memory);

  const std::shared_ptr<const CudaDriver> driver_;
  std::mutex mutex_;
  std::list<std::unique_ptr<IpcMemory>> spare_;
};

}  // namespace hvd
