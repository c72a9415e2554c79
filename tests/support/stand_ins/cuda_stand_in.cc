// A stand-in for libcuda, for tests on machines without a GPU: the functions that the engine uses,
// over host memory. Those for memory are in cuda_memory.cc.
//
// Every stream is a thread that runs its work in order. Addresses on a device have a bit that no
// address of this process has, so the CPU crashes when it uses one. Copies check that both ends are
// memory that CUDA knows, and calls that need a current device fail without one. Larger blocks are
// shared memory, which other processes can open, unless they are a pool's. Memory that is freed
// without a stream is freed when the device has done all its work. Kernels run from their PTX text.
#include <cstring>
#include <utility>

#include "core/quiet_thread.h"
#include "cuda_model.h"

using namespace stand_in;

namespace {

// Running kernels outlive their module.
using Kernels = std::shared_ptr<std::map<std::string, ptx::Kernel>>;

struct Function {
  Kernels kernels;
  const ptx::Kernel* kernel;
};

struct Module {
  Kernels kernels;
  std::deque<Function> functions;  // which have been asked for
};

}  // namespace

extern "C" {

int cuInit(unsigned) {
  CALL("cuInit");
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  CALL("cuDriverGetVersion");
  *version = 12040;
  return kSuccess;
}

int cuGetErrorName(int result, const char** name) {
  *name = result == kNotReady        ? "CUDA_ERROR_NOT_READY"
          : result == kOutOfMemory   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == kInvalidHandle ? "CUDA_ERROR_INVALID_HANDLE"
                                     : "CUDA_ERROR_INVALID_VALUE";
  return kSuccess;
}

int cuGetErrorString(int result, const char** text) {
  *text = result == kOutOfMemory ? "out of memory" : "invalid argument";
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  CALL("cuDeviceGetCount");
  *count = world().gpus;
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  CALL("cuDeviceGet");
  if (ordinal < 0 || ordinal >= world().gpus) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetUuid(unsigned char* uuid, int device) {
  CALL("cuDeviceGetUuid");
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<unsigned char>(device + 1);
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  CALL("cuDeviceGetAttribute");
  constexpr int kPoolsSupported = 115;
  if (attribute != kPoolsSupported) return kInvalidValue;
  *value = world().has_pools ? 1 : 0;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  CALL("cuDevicePrimaryCtxRetain");
  *context = &world().contexts[device];
  return kSuccess;
}

int cuCtxPushCurrent_v2(void* context) {
  CALL("cuCtxPushCurrent");
  current.push_back(static_cast<Context*>(context));
  return kSuccess;
}

int cuCtxPopCurrent_v2(void** context) {
  CALL("cuCtxPopCurrent");
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

int cuCtxSynchronize() {
  CALL("cuCtxSynchronize");
  if (current.empty()) return kInvalidContext;
  wait_for_device(current.back()->device);
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  CALL("cuThreadExchangeStreamCaptureMode");
  thread_local int own = 0;
  std::swap(own, *mode);
  return kSuccess;
}

int cuPointerGetAttribute(void* value, int attribute, std::uint64_t address) {
  CALL("cuPointerGetAttribute");
  constexpr int kMemoryType = 2;
  constexpr int kDeviceOrdinal = 9;
  const auto block = block_of(address, 1);
  if (!block || (attribute != kDeviceOrdinal && attribute != kMemoryType)) return kInvalidValue;
  *static_cast<int*>(value) =
      attribute == kDeviceOrdinal ? block->device : (block->is_host ? 1 : 2);
  return kSuccess;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  CALL("cuCtxGetStreamPriorityRange");
  if (current.empty()) return kInvalidContext;
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

int cuStreamCreateWithPriority(void** stream, unsigned, int) {
  CALL("cuStreamCreateWithPriority");
  if (current.empty()) return kInvalidContext;
  const auto made = std::make_shared<Stream>(current.back()->device);
  *stream = made.get();
  const std::lock_guard guard(world().mutex);
  world().streams[made.get()] = made;
  return kSuccess;
}

// Does not wait: the work of the stream continues.
int cuStreamDestroy_v2(void* stream) {
  CALL("cuStreamDestroy");
  if (current.empty()) return kInvalidContext;
  const std::lock_guard guard(world().mutex);
  hvd::start_detached([destroyed = world().streams.at(stream)] {
    destroyed->synchronize();
    const std::lock_guard erasing(world().mutex);
    world().streams.erase(destroyed.get());
  });
  return kSuccess;
}

int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  CALL("cuStreamWaitEvent");
  if (current.empty()) return kInvalidContext;
  const auto* awaited = static_cast<Event*>(event);
  const int device = current.back()->device;
  stream_of(stream, device).put([progress = awaited->progress, wanted = awaited->recorded] {
    std::unique_lock lock(progress->mutex);
    progress->changed.wait(lock, [&] { return progress->reached >= wanted; });
  });
  return kSuccess;
}

int cuStreamIsCapturing(void* stream, int* status) {
  CALL("cuStreamIsCapturing");
  *status = stream != nullptr && static_cast<Stream*>(stream)->is_capturing ? 1 : 0;
  return kSuccess;
}

int cuEventCreate(void** event, unsigned) {
  CALL("cuEventCreate");
  if (current.empty()) return kInvalidContext;
  *event = new Event{.device = current.back()->device};
  return kSuccess;
}

int cuEventDestroy_v2(void* event) {
  CALL("cuEventDestroy");
  if (current.empty()) return kInvalidContext;
  delete static_cast<Event*>(event);
  return kSuccess;
}

int cuEventRecord(void* event, void* stream) {
  CALL("cuEventRecord");
  auto* recorded = static_cast<Event*>(event);
  if (current.empty()) return kInvalidContext;
  Stream& on = stream_of(stream, recorded->device);
  if (on.device != recorded->device) return kInvalidHandle;
  on.put([progress = recorded->progress, number = ++recorded->recorded] {
    const std::lock_guard guard(progress->mutex);
    progress->reached = number;
    progress->changed.notify_all();
  });
  return kSuccess;
}

int cuEventQuery(void* event) {
  CALL("cuEventQuery");
  const auto* asked = static_cast<Event*>(event);
  const std::lock_guard guard(asked->progress->mutex);
  return asked->progress->reached >= asked->recorded ? kSuccess : kNotReady;
}

int cuEventSynchronize(void* event) {
  CALL("cuEventSynchronize");
  const auto* awaited = static_cast<Event*>(event);
  std::unique_lock lock(awaited->progress->mutex);
  awaited->progress->changed.wait(lock,
                                  [&] { return awaited->progress->reached >= awaited->recorded; });
  return kSuccess;
}

int cuModuleLoadData(void** module, const void* text) {
  CALL("cuModuleLoadData");
  if (current.empty()) return kInvalidContext;
  auto kernels = ptx::parse(static_cast<const char*>(text));
  *module = new Module{.kernels = std::make_shared<Kernels::element_type>(std::move(kernels)),
                       .functions = {}};
  return kSuccess;
}

int cuModuleUnload(void* module) {
  CALL("cuModuleUnload");
  if (current.empty()) return kInvalidContext;
  delete static_cast<Module*>(module);
  return kSuccess;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  CALL("cuModuleGetFunction");
  auto& [kernels, functions] = *static_cast<Module*>(module);
  const auto found = kernels->find(name);
  if (found == kernels->end()) return kNotFound;
  *function = &functions.emplace_back(Function{kernels, &found->second});
  return kSuccess;
}

int cuLaunchKernel(void* function, unsigned blocks, unsigned rows, unsigned, unsigned threads,
                   unsigned, unsigned, unsigned, void* stream, void** arguments, void**) {
  CALL("cuLaunchKernel");
  if (current.empty()) return kInvalidContext;
  const auto* launched = static_cast<Function*>(function);
  if (world().has_wrong_kernels) return kSuccess;
  const ptx::Grid grid{blocks, rows, threads};
  stream_of(stream, current.back()->device)
      .put([kernels = launched->kernels, kernel = launched->kernel, grid,
            parameters = ptx::pack(*launched->kernel, arguments)] {
        ptx::run(*kernel, grid, parameters, stretch_of);
      });
  return kSuccess;
}

}  // extern "C"
