// A stand-in for libcuda, for tests on machines without a GPU: the functions that the engine uses,
// over host memory.
//
// Every stream is a thread that runs its work in order. Addresses on a device have a bit that no
// address of this process has, so the CPU crashes when it uses one. Copies check that both ends are
// memory that CUDA knows, and calls that need a current device fail without one. Larger blocks are
// shared memory, which other processes can open, unless they are a pool's. Memory that is freed
// without a stream is freed when the device has done all its work. Kernels run from their PTX text.
#include "cuda_stand_in.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ptx_machine.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kLaunchFailed = 719;
constexpr int kInternalErrorOfNccl = 3;
constexpr int kMostGpus = 16;
constexpr std::size_t kLeastShared = 128 * 1024;
constexpr std::uint64_t kDeviceBit = std::uint64_t{1} << 62;
constexpr std::size_t kMemory = std::size_t{80} << 30;  // of a GPU without a limit

struct Context {
  int device;
};

class Stream {
 public:
  explicit Stream(int device) : device(device), thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard guard(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void put(std::function<void()> work) {
    {
      const std::lock_guard guard(mutex_);
      queue_.push_back(std::move(work));
      ++put_;
    }
    changed_.notify_all();
  }

  // Waits for the work that is in it now.
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, goal = put_] { return done_ >= goal; });
  }

  const int device;
  bool is_capturing = false;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return is_ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const auto work = queue_.front();
      lock.unlock();
      work();
      lock.lock();
      queue_.pop_front();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t put_ = 0;
  std::uint64_t done_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

// Shared with its waiters: CUDA allows events to be destroyed earlier.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t reached = 0;
};

struct Event {
  int device;
  std::uint64_t recorded = 0;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
};

struct Pool {
  int device;
  bool has_internal_reuse = true;
  Event freed{};  // recorded: so many were put into streams
};

struct Handle {
  char bytes[64];
};

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

struct Failure {
  int code;
  long calls;
};

struct World {
  std::mutex mutex;
  int gpus = 2;
  std::map<std::string, long> calls;
  std::map<std::string, Failure> failures;
  long calls_until_failure = -1;  // less than 0: there is no more to come
  std::string failed;
  struct Block {
    std::size_t size_bytes;
    int device;
    int descriptor = -1;  // of shared memory
    int openings = 0;     // of another's memory
    Pool* pool = nullptr;
    bool is_host = false;
    bool is_left_over = false;  // an earlier test allocated it, and its GPU still frees it
  };
  std::map<std::uint64_t, Block> blocks;  // by host address
  std::size_t limit_bytes = 0;            // of each GPU; 0: none
  bool has_pools = true;
  std::map<int, std::shared_ptr<Stream>> default_streams;
  std::map<void*, std::shared_ptr<Stream>> streams;  // others
  Context contexts[kMostGpus];
  bool has_wrong_kernels = false;
};

// Never destroyed: streams may run until the process ends.
World& world() {
  static World* const world = [] {
    auto* made = new World;
    for (int device = 0; device < kMostGpus; ++device) made->contexts[device].device = device;
    if (const char* gpus = std::getenv("STAND_IN_GPUS")) made->gpus = std::atoi(gpus);
    return made;
  }();
  return *world;
}

thread_local std::vector<Context*> current;

Stream& stream_of(void* stream, int device) {
  if (stream != nullptr) return *static_cast<Stream*>(stream);
  const std::lock_guard guard(world().mutex);
  auto& made = world().default_streams[device];
  if (made == nullptr) made = std::make_unique<Stream>(device);
  return *made;
}

std::byte* seen_from_host(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(address & ~kDeviceBit);
}

// Waits for the work that is in the streams of the device now.
void wait_for_device(int device) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard guard(world().mutex);
    for (const auto& [_, stream] : world().default_streams) streams.push_back(stream);
    for (const auto& [_, stream] : world().streams) streams.push_back(stream);
  }
  for (const auto& stream : streams) {
    if (stream->device == device) stream->synchronize();
  }
}

// The block of an address, as the CPU sees it. GPUs reach the host's pinned memory, too.
ptx::Stretch stretch_of(std::uint64_t address) {
  const std::uint64_t bit = address & kDeviceBit;
  const std::uint64_t begin = address & ~kDeviceBit;
  const std::lock_guard guard(world().mutex);
  auto after = world().blocks.upper_bound(begin);
  if (after == world().blocks.begin()) return {};
  --after;
  const auto& [first, block] = *after;
  if (begin > first + block.size_bytes || block.is_host != (bit == 0)) return {};
  return {
      .begin = first | bit, .end = (first | bit) + block.size_bytes, .host = seen_from_host(first)};
}

// The block that has the whole range.
std::optional<World::Block> block_of(std::uint64_t address, std::size_t size_bytes) {
  const ptx::Stretch stretch = stretch_of(address);
  if (stretch.host == nullptr || address + size_bytes > stretch.end) return std::nullopt;
  const std::lock_guard guard(world().mutex);
  return world().blocks.at(reinterpret_cast<std::uint64_t>(stretch.host));
}

// Under the mutex.
std::size_t used_on(int device) {
  std::size_t used_bytes = 0;
  for (const auto& [_, block] : world().blocks) {
    if (block.device == device && !block.is_host && block.openings == 0 && !block.is_left_over)
      used_bytes += block.size_bytes;
  }
  return used_bytes;
}

int add_block(std::uint64_t* address, const World::Block& block, void* memory) {
  const auto begin = reinterpret_cast<std::uint64_t>(memory);
  const std::lock_guard guard(world().mutex);
  world().blocks[begin] = block;
  *address = block.is_host ? begin : begin | kDeviceBit;
  return kSuccess;
}

bool has_room(int device, std::size_t size_bytes) {
  const std::lock_guard guard(world().mutex);
  const std::size_t limit_bytes = world().limit_bytes;
  return limit_bytes == 0 || used_on(device) + size_bytes <= limit_bytes;
}

void free_block(std::uint64_t address) {
  World::Block block;
  {
    const std::lock_guard guard(world().mutex);
    const auto found = world().blocks.find(address & ~kDeviceBit);
    block = found->second;
    world().blocks.erase(found);
  }
  if (block.descriptor < 0) {
    std::free(seen_from_host(address));
  } else {
    munmap(seen_from_host(address), block.size_bytes);
    close(block.descriptor);
  }
}

// The content of a handle: how another process finds the memory.
struct Export {
  int process;
  int descriptor;
  int device;
  std::size_t size_bytes;
};

void* map_shared(int descriptor, std::size_t size_bytes) {
  return mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
}

int put_copy(void* stream, std::uint64_t to, std::uint64_t from, std::size_t size_bytes) {
  if (current.empty()) return kInvalidContext;
  stream_of(stream, current.back()->device).put([=] {
    std::memcpy(seen_from_host(to), seen_from_host(from), size_bytes);
  });
  return kSuccess;
}

// The stream's device reaches all memory but what a pool has on another device.
bool reaches(void* stream, const World::Block& block) {
  if (current.empty()) return false;
  return block.pool == nullptr || stream_of(stream, current.back()->device).device == block.device;
}

}  // namespace

// Counts the call and returns the injected error code.
#define CALL(name) \
  if (const int ordered = stand_in_count(name); ordered != kSuccess) return ordered

extern "C" {

int stand_in_count(const char* function) {
  const std::lock_guard guard(world().mutex);
  ++world().calls[function];
  if (world().calls_until_failure-- == 0) {
    world().failed = function;
    return world().failed.starts_with("nccl") ? kInternalErrorOfNccl : kLaunchFailed;
  }
  const auto found = world().failures.find(function);
  if (found == world().failures.end() || found->second.calls-- > 0) return kSuccess;
  found->second.calls = 0;
  return found->second.code;
}

long stand_in_calls(const char* function) {
  const std::lock_guard guard(world().mutex);
  const auto found = world().calls.find(function);
  return found == world().calls.end() ? 0 : found->second;
}

void stand_in_fail(const char* function, int code, long calls) {
  const std::lock_guard guard(world().mutex);
  world().failures[function] = {code, calls};
}

void stand_in_fail_once(long calls) {
  const std::lock_guard guard(world().mutex);
  world().calls_until_failure = calls;
  world().failed.clear();
}

const char* stand_in_failed() {
  const std::lock_guard guard(world().mutex);
  return world().failed.empty() ? nullptr : world().failed.c_str();
}

void stand_in_reset() {
  const std::lock_guard guard(world().mutex);
  world().calls_until_failure = -1;
  world().calls.clear();
  world().failures.clear();
  world().has_wrong_kernels = false;
  world().limit_bytes = 0;
  world().has_pools = true;
  for (auto& [_, block] : world().blocks) block.is_left_over = true;
}

void stand_in_spoil_kernels() { world().has_wrong_kernels = true; }

void stand_in_set_gpus(int count) { world().gpus = std::min(count, kMostGpus); }

void stand_in_limit_memory(std::size_t bytes) {
  const std::lock_guard guard(world().mutex);
  world().limit_bytes = bytes;
}

void stand_in_set_pools(int has_pools) { world().has_pools = has_pools != 0; }

void* stand_in_host_address(std::uint64_t address) {
  return block_of(address, 0) ? seen_from_host(address) : nullptr;
}

void stand_in_enqueue(void* stream, void (*work)(void*), void* argument) {
  const int device = current.empty() ? 0 : current.back()->device;
  stream_of(stream, device).put([=] { work(argument); });
}

void stand_in_synchronize(void* stream, int device) { stream_of(stream, device).synchronize(); }

void stand_in_set_capturing(void* stream, int is_capturing) {
  static_cast<Stream*>(stream)->is_capturing = is_capturing != 0;
}

int stand_in_current_device() { return current.empty() ? -1 : current.back()->device; }

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
  std::thread([destroyed = world().streams.at(stream)] {
    destroyed->synchronize();
    const std::lock_guard erasing(world().mutex);
    world().streams.erase(destroyed.get());
  }).detach();
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

int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* all_bytes) {
  CALL("cuMemGetInfo");
  if (current.empty()) return kInvalidContext;
  const std::lock_guard guard(world().mutex);
  *all_bytes = world().limit_bytes == 0 ? kMemory : world().limit_bytes;
  *free_bytes = *all_bytes - std::min(*all_bytes, used_on(current.back()->device));
  return kSuccess;
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t size_bytes) {
  CALL("cuMemAlloc");
  if (current.empty()) return kInvalidContext;
  const int device = current.back()->device;
  if (!has_room(device, size_bytes)) return kOutOfMemory;
  void* memory = nullptr;
  int descriptor = -1;
  if (size_bytes < kLeastShared) {
    memory = std::malloc(size_bytes);
  } else {
    descriptor = memfd_create("device memory", MFD_CLOEXEC);
    if (ftruncate(descriptor, static_cast<off_t>(size_bytes)) != 0) return kOutOfMemory;
    memory = map_shared(descriptor, size_bytes);
  }
  return add_block(address, {.size_bytes = size_bytes, .device = device, .descriptor = descriptor},
                   memory);
}

int cuMemFree_v2(std::uint64_t address) {
  CALL("cuMemFree");
  if (current.empty()) return kInvalidContext;
  const auto block = block_of(address, 0);
  if (!block || block->is_host || block->pool != nullptr || block->openings != 0)
    return kInvalidValue;
  wait_for_device(block->device);
  free_block(address);
  return kSuccess;
}

int cuMemPoolCreate(void** pool, const int* properties) {
  CALL("cuMemPoolCreate");
  if (!world().has_pools) return kInvalidValue;
  *pool = new Pool{.device = properties[3]};
  return kSuccess;
}

// Memory that is still in use needs it.
int cuMemPoolDestroy(void* pool) {
  CALL("cuMemPoolDestroy");
  const int device = static_cast<Pool*>(pool)->device;
  std::thread([pool, device] {
    wait_for_device(device);
    delete static_cast<Pool*>(pool);
  }).detach();
  return kSuccess;
}

int cuMemPoolSetAttribute(void* pool, int attribute, const void* value) {
  CALL("cuMemPoolSetAttribute");
  constexpr int kInternalReuse = 3;
  if (attribute != kInternalReuse) return kInvalidValue;
  static_cast<Pool*>(pool)->has_internal_reuse = *static_cast<const int*>(value) != 0;
  return kSuccess;
}

// By default CUDA may give out memory whose last use has not ended. Then the stream waits for it.
int cuMemAllocFromPoolAsync(std::uint64_t* address, std::size_t size_bytes, void* from,
                            void* stream) {
  CALL("cuMemAllocFromPoolAsync");
  auto* const pool = static_cast<Pool*>(from);
  if (pool->has_internal_reuse) cuStreamWaitEvent(stream, &pool->freed, 0);
  // What the same stream has freed before is there again.
  if (!has_room(pool->device, size_bytes)) stream_of(stream, pool->device).synchronize();
  if (!has_room(pool->device, size_bytes)) return kOutOfMemory;
  return add_block(address, {.size_bytes = size_bytes, .device = pool->device, .pool = pool},
                   std::malloc(size_bytes));
}

int cuMemFreeAsync(std::uint64_t address, void* stream) {
  CALL("cuMemFreeAsync");
  const auto block = block_of(address, 0);
  if (!block || block->pool == nullptr) return kInvalidValue;
  {
    const std::lock_guard guard(block->pool->freed.progress->mutex);
    ++block->pool->freed.recorded;
  }
  stream_of(stream, block->device).put([address, progress = block->pool->freed.progress] {
    free_block(address);
    const std::lock_guard guard(progress->mutex);
    ++progress->reached;
    progress->changed.notify_all();
  });
  return kSuccess;
}

int cuIpcGetMemHandle(Handle* handle, std::uint64_t address) {
  CALL("cuIpcGetMemHandle");
  if (current.empty()) return kInvalidContext;
  const std::lock_guard guard(world().mutex);
  const auto found = world().blocks.find(address & ~kDeviceBit);
  if (found == world().blocks.end() || found->second.descriptor < 0) return kInvalidValue;
  const auto& [_, block] = *found;
  const Export exported{getpid(), block.descriptor, block.device, block.size_bytes};
  std::memcpy(handle->bytes, &exported, sizeof exported);
  return kSuccess;
}

// Ranks in one process may also open each other's memory, at a separate address.
int cuIpcOpenMemHandle_v2(std::uint64_t* address, Handle handle, unsigned) {
  CALL("cuIpcOpenMemHandle");
  if (current.empty()) return kInvalidContext;
  Export exported;
  std::memcpy(&exported, handle.bytes, sizeof exported);
  const std::string path =
      "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return kInvalidHandle;
  void* const memory = map_shared(descriptor, exported.size_bytes);
  close(descriptor);
  if (memory == MAP_FAILED) return kInvalidHandle;
  return add_block(address,
                   {.size_bytes = exported.size_bytes, .device = exported.device, .openings = 1},
                   memory);
}

int cuIpcCloseMemHandle(std::uint64_t address) {
  CALL("cuIpcCloseMemHandle");
  if (current.empty()) return kInvalidContext;
  const std::lock_guard guard(world().mutex);
  const auto found = world().blocks.find(address & ~kDeviceBit);
  if (found == world().blocks.end() || found->second.openings == 0) return kInvalidValue;
  munmap(seen_from_host(address), found->second.size_bytes);
  world().blocks.erase(found);
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

int cuMemHostAlloc(void** memory, std::size_t size_bytes, unsigned) {
  CALL("cuMemHostAlloc");
  if (current.empty()) return kInvalidContext;
  *memory = std::malloc(size_bytes);
  std::uint64_t address = 0;
  return add_block(&address,
                   {.size_bytes = size_bytes, .device = current.back()->device, .is_host = true},
                   *memory);
}

int cuMemFreeHost(void* memory) {
  CALL("cuMemFreeHost");
  const auto address = reinterpret_cast<std::uint64_t>(memory);
  const auto block = block_of(address, 0);
  if (!block || !block->is_host) return kInvalidValue;
  wait_for_device(block->device);
  free_block(address);
  return kSuccess;
}

int cuMemcpyAsync(std::uint64_t to, std::uint64_t from, std::size_t size_bytes, void* stream) {
  CALL("cuMemcpyAsync");
  const auto to_block = block_of(to, size_bytes);
  const auto from_block = block_of(from, size_bytes);
  if (!to_block || !from_block) return kInvalidValue;
  if (!reaches(stream, *to_block) || !reaches(stream, *from_block)) return kInvalidValue;
  if (to_block->is_host && !from_block->is_host) stand_in_count("cuMemcpyAsync to the host");
  return put_copy(stream, to, from, size_bytes);
}

int cuMemcpyPeerAsync(std::uint64_t to, void* to_context, std::uint64_t from, void* from_context,
                      std::size_t size_bytes, void* stream) {
  CALL("cuMemcpyPeerAsync");
  const auto is_valid = [size_bytes](std::uint64_t address, void* context) {
    const auto block = block_of(address, size_bytes);
    const bool is_own = block && block->device == static_cast<Context*>(context)->device;
    return block && !block->is_host && (is_own || block->openings != 0);
  };
  if (!is_valid(to, to_context) || !is_valid(from, from_context)) return kInvalidValue;
  return put_copy(stream, to, from, size_bytes);
}

int cuMemsetD8Async(std::uint64_t to, unsigned char value, std::size_t size_bytes, void* stream) {
  CALL("cuMemsetD8Async");
  if (current.empty()) return kInvalidContext;
  const auto block = block_of(to, size_bytes);
  if (!block || !reaches(stream, *block)) return kInvalidValue;
  stream_of(stream, current.back()->device).put([=] {
    std::memset(seen_from_host(to), value, size_bytes);
  });
  return kSuccess;
}

}  // extern "C"
