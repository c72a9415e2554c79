// gpu/cuda_driver.h against NVIDIA's cuda.h.

// As NVIDIA builds its driver: each name is that of the library's function, none stands for another
// version of it.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "agreement.h"
#include "gpu/cuda_driver.h"

namespace hvd::test {

HVD_COUNTERPART(std::remove_pointer_t<cuda::Context>, std::remove_pointer_t<CUcontext>)
HVD_COUNTERPART(std::remove_pointer_t<cuda::Stream>, std::remove_pointer_t<CUstream>)
HVD_COUNTERPART(std::remove_pointer_t<cuda::Event>, std::remove_pointer_t<CUevent>)
HVD_COUNTERPART(std::remove_pointer_t<cuda::Module>, std::remove_pointer_t<CUmodule>)
HVD_COUNTERPART(std::remove_pointer_t<cuda::Function>, std::remove_pointer_t<CUfunction>)
HVD_COUNTERPART(std::remove_pointer_t<cuda::Pool>, std::remove_pointer_t<CUmemoryPool>)
HVD_COUNTERPART(cuda::Uuid, CUuuid)
HVD_COUNTERPART(cuda::IpcHandle, CUipcMemHandle)
HVD_COUNTERPART(cuda::PoolProperties, CUmemPoolProps)

namespace {

#define CUDA_FUNCTIONS(X)                                     \
  X(init, cuInit)                                             \
  X(driver_get_version, cuDriverGetVersion)                   \
  X(get_error_name, cuGetErrorName)                           \
  X(get_error_string, cuGetErrorString)                       \
  X(device_get_count, cuDeviceGetCount)                       \
  X(device_get, cuDeviceGet)                                  \
  X(device_get_uuid, cuDeviceGetUuid)                         \
  X(device_get_attribute, cuDeviceGetAttribute)               \
  X(primary_retain, cuDevicePrimaryCtxRetain)                 \
  X(push_current, cuCtxPushCurrent_v2)                        \
  X(pop_current, cuCtxPopCurrent_v2)                          \
  X(context_synchronize, cuCtxSynchronize)                    \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode) \
  X(pointer_get_attribute, cuPointerGetAttribute)             \
  X(stream_priority_range, cuCtxGetStreamPriorityRange)       \
  X(stream_create, cuStreamCreateWithPriority)                \
  X(stream_destroy, cuStreamDestroy_v2)                       \
  X(stream_wait_event, cuStreamWaitEvent)                     \
  X(stream_is_capturing, cuStreamIsCapturing)                 \
  X(event_create, cuEventCreate)                              \
  X(event_destroy, cuEventDestroy_v2)                         \
  X(event_record, cuEventRecord)                              \
  X(event_query, cuEventQuery)                                \
  X(event_synchronize, cuEventSynchronize)                    \
  X(mem_alloc, cuMemAlloc_v2)                                 \
  X(mem_free, cuMemFree_v2)                                   \
  X(mem_get_info, cuMemGetInfo_v2)                            \
  X(mem_host_alloc, cuMemHostAlloc)                           \
  X(mem_free_host, cuMemFreeHost)                             \
  X(copy, cuMemcpyAsync)                                      \
  X(copy_peer, cuMemcpyPeerAsync)                             \
  X(memset, cuMemsetD8Async)                                  \
  X(memset_words, cuMemsetD32Async)                           \
  X(ipc_get_handle, cuIpcGetMemHandle)                        \
  X(ipc_open_handle, cuIpcOpenMemHandle_v2)                   \
  X(ipc_close_handle, cuIpcCloseMemHandle)                    \
  X(module_load, cuModuleLoadData)                            \
  X(module_unload, cuModuleUnload)                            \
  X(module_get_function, cuModuleGetFunction)                 \
  X(launch_kernel, cuLaunchKernel)

#define CUDA_POOL_FUNCTIONS(X)            \
  X(create, cuMemPoolCreate)              \
  X(destroy, cuMemPoolDestroy)            \
  X(set_attribute, cuMemPoolSetAttribute) \
  X(allocate, cuMemAllocFromPoolAsync)    \
  X(free, cuMemFreeAsync)

TEST_CASE("functions of libcuda have the parameters that NVIDIA's header says") {
  const SharedLibrary library(CUDA_STAND_IN);
  SUBCASE("those of all drivers") {
    using Table = CudaFunctions;
    enum class Members { CUDA_FUNCTIONS(HVD_COUNTED) kCount };
    static_assert(has_functions<Table>(static_cast<std::size_t>(Members::kCount)));
    CUDA_FUNCTIONS(HVD_AGREES)
    const Table table(library);
    CUDA_FUNCTIONS(HVD_HAS_NAME)
  }
  SUBCASE("those of memory pools") {
    using Table = CudaPoolFunctions;
    enum class Members { CUDA_POOL_FUNCTIONS(HVD_COUNTED) kCount };
    static_assert(has_functions<Table>(static_cast<std::size_t>(Members::kCount)));
    CUDA_POOL_FUNCTIONS(HVD_AGREES)
    const Table table(library);
    CUDA_POOL_FUNCTIONS(HVD_HAS_NAME)
  }
}

static_assert(sizeof(cuda::Address) == sizeof(CUdeviceptr));
static_assert(sizeof(cuda::Device) == sizeof(CUdevice));

static_assert(cuda::kSuccess == CUDA_SUCCESS);
static_assert(cuda::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cuda::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(cuda::kNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kWithoutTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::kPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(cuda::kNotCapturing == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(cuda::kRelaxedCapture == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(cuda::kDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(cuda::kMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(cuda::kHostMemory == CU_MEMORYTYPE_HOST);
static_assert(cuda::kLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(cuda::kPoolsSupported == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
static_assert(cuda::kInternalReuse == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);

static_assert(has_same_layout<cuda::Uuid>);
static_assert(has_same_layout<cuda::IpcHandle>);

using Pool = cuda::PoolProperties;
static_assert(has_same_layout<Pool>);
#define POOL_FIELD(ours, theirs)                                           \
  static_assert(offsetof(Pool, ours) == offsetof(CUmemPoolProps, theirs)); \
  static_assert(sizeof(Pool::ours) == sizeof(CUmemPoolProps{}.theirs));
POOL_FIELD(allocation_type, allocType)
POOL_FIELD(handle_types, handleTypes)
POOL_FIELD(location_type, location.type)
POOL_FIELD(id, location.id)
POOL_FIELD(security_attributes, win32SecurityAttributes)
POOL_FIELD(max_bytes, maxSize)
POOL_FIELD(usage, usage)  // what follows must be zero
static_assert(Pool{}.allocation_type == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(Pool{}.handle_types == CU_MEM_HANDLE_TYPE_NONE);
static_assert(Pool{}.location_type == CU_MEM_LOCATION_TYPE_DEVICE);

}  // namespace
}  // namespace hvd::test
