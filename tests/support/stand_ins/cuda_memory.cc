// The functions of the stand-in for libcuda that have to do with memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/quiet_thread.h"
#include "cuda_model.h"

using namespace stand_in;

namespace {

struct Handle {
  char bytes[64];
};

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

extern "C" {

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
  hvd::start_detached([pool, device] {
    wait_for_device(device);
    delete static_cast<Pool*>(pool);
  });
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

int cuMemsetD32Async(std::uint64_t to, unsigned value, std::size_t count, void* stream) {
  CALL("cuMemsetD32Async");
  if (current.empty()) return kInvalidContext;
  const auto block = block_of(to, count * sizeof(value));
  if (to % sizeof(value) != 0 || !block || !reaches(stream, *block)) return kInvalidValue;
  stream_of(stream, current.back()->device).put([=] {
    std::fill_n(reinterpret_cast<unsigned*>(seen_from_host(to)), count, value);
  });
  return kSuccess;
}

}  // extern "C"
