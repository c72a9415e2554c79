#include "cuda_model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace stand_in {

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

std::optional<World::Block> block_of(std::uint64_t address, std::size_t size_bytes) {
  const ptx::Stretch stretch = stretch_of(address);
  if (stretch.host == nullptr || address + size_bytes > stretch.end) return std::nullopt;
  const std::lock_guard guard(world().mutex);
  return world().blocks.at(reinterpret_cast<std::uint64_t>(stretch.host));
}

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

}  // namespace stand_in

using namespace stand_in;

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
  world().has_few_kernels = false;
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

void stand_in_limit_kernels(int is_limited) { world().has_few_kernels = is_limited != 0; }

int stand_in_has_few_kernels() { return world().has_few_kernels ? 1 : 0; }

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

}  // extern "C"
