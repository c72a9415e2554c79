// CUDA's driver interface: the functions that the engine uses, found in libcuda at run time.
//
// Types and numbers are those of cuda.h, whose ABI does not change. Any thread. CurrentDevice gives
// a thread the current context that most functions need.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "core/shared_library.h"

namespace hvd {

namespace cuda {

using Result = int;  // CUresult
inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotReady = 600;

using Device = int;
using Context = struct ContextRecord*;
using Stream = struct StreamRecord*;  // null: the default stream
using Event = struct EventRecord*;
using Address = std::uint64_t;  // CUdeviceptr
inline Address address_of(const void* data) { return reinterpret_cast<Address>(data); }
using Module = struct ModuleRecord*;
using Function = struct FunctionRecord*;
using Pool = struct PoolRecord*;  // CUmemoryPool
struct Uuid {
  std::array<unsigned char, 16> bytes;
};
struct IpcHandle {
  std::array<char, 64> bytes;
};

inline constexpr unsigned kNonBlocking = 1;    // a stream that does not wait for the default one
inline constexpr unsigned kWithoutTiming = 2;  // an event
inline constexpr unsigned kPortable = 1;       // pinned memory for all contexts
inline constexpr int kNotCapturing = 0;
inline constexpr int kRelaxedCapture = 2;
inline constexpr int kDeviceOrdinal = 9;        // an attribute of an address
inline constexpr unsigned kLazyPeerAccess = 1;  // memory of another GPU may be opened, too
inline constexpr int kMemoryType = 2;           // an attribute of an address
inline constexpr int kHostMemory = 1;           // its value
inline constexpr int kPoolsSupported = 115;     // an attribute of a device
inline constexpr int kInternalReuse = 3;        // an attribute of a pool

struct PoolProperties {  // CUmemPoolProps; the defaults are memory of device `id` alone
  int allocation_type = 1;
  int handle_types = 0;
  int location_type = 1;
  int id = 0;
  void* security_attributes = nullptr;
  std::size_t max_bytes = 0;
  unsigned short usage = 0;
  std::array<unsigned char, 54> reserved{};
};

}  // namespace cuda

template <typename... Parameters>
using CudaFunction = LibraryFunction<cuda::Result, Parameters...>;

struct CudaFunctions {
  explicit CudaFunctions(const SharedLibrary& library) : from(library) {}

  const SharedLibrary& from;
  CudaFunction<unsigned> init{from, "cuInit"};
  CudaFunction<int*> driver_get_version{from, "cuDriverGetVersion"};
  CudaFunction<cuda::Result, const char**> get_error_name{from, "cuGetErrorName"};
  CudaFunction<cuda::Result, const char**> get_error_string{from, "cuGetErrorString"};
  CudaFunction<int*> device_get_count{from, "cuDeviceGetCount"};
  CudaFunction<cuda::Device*, int> device_get{from, "cuDeviceGet"};
  CudaFunction<cuda::Uuid*, cuda::Device> device_get_uuid{from, "cuDeviceGetUuid"};
  CudaFunction<int*, int, cuda::Device> device_get_attribute{from, "cuDeviceGetAttribute"};
  CudaFunction<cuda::Context*, cuda::Device> primary_retain{from, "cuDevicePrimaryCtxRetain"};
  CudaFunction<cuda::Context> push_current{from, "cuCtxPushCurrent_v2"};
  CudaFunction<cuda::Context*> pop_current{from, "cuCtxPopCurrent_v2"};
  CudaFunction<> context_synchronize{from, "cuCtxSynchronize"};
  CudaFunction<int*> exchange_capture_mode{from, "cuThreadExchangeStreamCaptureMode"};
  CudaFunction<void*, int, cuda::Address> pointer_get_attribute{from, "cuPointerGetAttribute"};
  CudaFunction<int*, int*> stream_priority_range{from, "cuCtxGetStreamPriorityRange"};
  CudaFunction<cuda::Stream*, unsigned, int> stream_create{from, "cuStreamCreateWithPriority"};
  CudaFunction<cuda::Stream> stream_destroy{from, "cuStreamDestroy_v2"};
  CudaFunction<cuda::Stream, cuda::Event, unsigned> stream_wait_event{from, "cuStreamWaitEvent"};
  CudaFunction<cuda::Stream, int*> stream_is_capturing{from, "cuStreamIsCapturing"};
  CudaFunction<cuda::Event*, unsigned> event_create{from, "cuEventCreate"};
  CudaFunction<cuda::Event> event_destroy{from, "cuEventDestroy_v2"};
  CudaFunction<cuda::Event, cuda::Stream> event_record{from, "cuEventRecord"};
  CudaFunction<cuda::Event> event_query{from, "cuEventQuery"};
  CudaFunction<cuda::Event> event_synchronize{from, "cuEventSynchronize"};
  CudaFunction<cuda::Address*, std::size_t> mem_alloc{from, "cuMemAlloc_v2"};
  CudaFunction<cuda::Address> mem_free{from, "cuMemFree_v2"};
  CudaFunction<std::size_t*, std::size_t*> mem_get_info{from, "cuMemGetInfo_v2"};
  CudaFunction<void**, std::size_t, unsigned> mem_host_alloc{from, "cuMemHostAlloc"};
  CudaFunction<void*> mem_free_host{from, "cuMemFreeHost"};
  CudaFunction<cuda::Address, cuda::Address, std::size_t, cuda::Stream> copy{from, "cuMemcpyAsync"};
  CudaFunction<cuda::Address, cuda::Context, cuda::Address, cuda::Context, std::size_t,
               cuda::Stream>
      copy_peer{from, "cuMemcpyPeerAsync"};
  CudaFunction<cuda::Address, unsigned char, std::size_t, cuda::Stream> memset{from,
                                                                               "cuMemsetD8Async"};
  CudaFunction<cuda::Address, unsigned, std::size_t, cuda::Stream> memset_words{from,
                                                                                "cuMemsetD32Async"};
  CudaFunction<cuda::IpcHandle*, cuda::Address> ipc_get_handle{from, "cuIpcGetMemHandle"};
  CudaFunction<cuda::Address*, cuda::IpcHandle, unsigned> ipc_open_handle{from,
                                                                          "cuIpcOpenMemHandle_v2"};
  CudaFunction<cuda::Address> ipc_close_handle{from, "cuIpcCloseMemHandle"};
  CudaFunction<cuda::Module*, const void*> module_load{from, "cuModuleLoadData"};
  CudaFunction<cuda::Module> module_unload{from, "cuModuleUnload"};
  CudaFunction<cuda::Function*, cuda::Module, const char*> module_get_function{
      from, "cuModuleGetFunction"};
  CudaFunction<cuda::Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
               cuda::Stream, void**, void**>
      launch_kernel{from, "cuLaunchKernel"};
};

// Memory that is allocated and freed in the order of a stream, from CUDA 11.2 on.
struct CudaPoolFunctions {
  explicit CudaPoolFunctions(const SharedLibrary& library) : from(library) {}

  const SharedLibrary& from;
  CudaFunction<cuda::Pool*, const cuda::PoolProperties*> create{from, "cuMemPoolCreate"};
  CudaFunction<cuda::Pool> destroy{from, "cuMemPoolDestroy"};
  CudaFunction<cuda::Pool, int, void*> set_attribute{from, "cuMemPoolSetAttribute"};
  CudaFunction<cuda::Address*, std::size_t, cuda::Pool, cuda::Stream> allocate{
      from, "cuMemAllocFromPoolAsync"};
  CudaFunction<cuda::Address, cuda::Stream> free{from, "cuMemFreeAsync"};
};

class CudaDriver {
 public:
  // Throws Error(kSystem) where there is no such library, or no GPU that it can use.
  explicit CudaDriver(const std::string& path);

  const CudaFunctions& functions() const { return functions_; }
  // REQUIRES: has_pools() of some device.
  const CudaPoolFunctions& pool_functions() const { return *pool_functions_; }
  bool has_pools(int device) const;
  int version() const { return version_; }  // such as 12040
  int device_count() const { return device_count_; }
  cuda::Uuid uuid_of(int device) const;
  // The device that has the memory.
  int device_of(cuda::Address address) const;
  // The context that a process' libraries share.
  cuda::Context context_of(int device) const;

  // Throws Error(kSystem) with CUDA's own text.
  template <typename... Parameters, typename... Arguments>
  void call(const CudaFunction<Parameters...>& function, Arguments... arguments) const {
    check(function.call(arguments...), function.name);
  }
  void check(cuda::Result result, const char* function) const;
  // Puts a copy into `stream`, whose device is current. CUDA knows of each address whether it is
  // on the device or pinned memory of the host.
  void copy(cuda::Address to, cuda::Address from, std::size_t size_bytes,
            cuda::Stream stream) const {
    if (size_bytes != 0) call(functions_.copy, to, from, size_bytes, stream);
  }
  // The same where the addresses are perhaps valid on different devices.
  void copy_across(cuda::Address to, int to_device, cuda::Address from, int from_device,
                   std::size_t size_bytes, cuda::Stream stream) const;
  void copy_in(cuda::Address to, const std::byte* from, std::size_t size_bytes,
               cuda::Stream stream) const {
    copy(to, cuda::address_of(from), size_bytes, stream);
  }
  void copy_out(std::byte* to, cuda::Address from, std::size_t size_bytes,
                cuda::Stream stream) const {
    copy(cuda::address_of(to), from, size_bytes, stream);
  }
  // Puts a fill with zeros into `stream`, in the same way.
  void clear(cuda::Address at, std::size_t size_bytes, cuda::Stream stream) const {
    if (size_bytes == 0) return;
    call(functions_.memset, at, static_cast<unsigned char>(0), size_bytes, stream);
  }
  // The same with `count` times a number.
  void fill(cuda::Address at, std::int32_t number, std::size_t count, cuda::Stream stream) const {
    if (count != 0) call(functions_.memset_words, at, static_cast<unsigned>(number), count, stream);
  }
  // "cuEventRecord: CUDA_ERROR_INVALID_HANDLE, invalid resource handle".
  std::string text_of(cuda::Result result, const char* function) const;

 private:
  cuda::Device handle_of(int device) const;
  bool is_on_host(cuda::Address address) const;

  const SharedLibrary library_;
  const CudaFunctions functions_;
  std::optional<CudaPoolFunctions> pool_functions_;  // none: the driver is too old
  int version_ = 0;
  int device_count_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<int, cuda::Context> contexts_;  // retained until the process ends
};

// While it lives, calls of this thread do not break a graph that another thread is capturing.
class BesideCaptures {
 public:
  explicit BesideCaptures(const CudaDriver& driver) : driver_(driver) { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void exchange() { driver_.functions().exchange_capture_mode.call(&mode_); }

  const CudaDriver& driver_;
  int mode_ = cuda::kRelaxedCapture;
};

// While it lives, `device` is current in this thread.
class CurrentDevice {
 public:
  CurrentDevice(const CudaDriver& driver, int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const CudaDriver& driver_;
  const BesideCaptures beside_captures_;
};

}  // namespace hvd
