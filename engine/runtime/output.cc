#include "runtime/output.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace hvd {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = 2UL << 20;
// From this size on the first touch of each small page costs more than the copy into it.
constexpr std::size_t kLarge = 2 * kHugePage;
// At most so many bytes are kept for the next result.
constexpr std::size_t kMostSpare = 64UL << 20;

std::byte* allocate_aligned(std::size_t alignment, std::size_t size_bytes) {
  void* bytes = std::aligned_alloc(alignment, size_bytes);
  if (bytes == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(bytes);
}

}  // namespace

void FreeOutput::operator()(std::byte* bytes) const {
  if (pool != nullptr) {
    pool->give_back(bytes, capacity_bytes);
  } else {
    std::free(bytes);
  }
}

OutputBytes OutputPool::allocate(std::size_t size_bytes) {
  if (size_bytes < kLarge) {
    const std::size_t rounded = (size_bytes / kAlignment + 1) * kAlignment;
    return OutputBytes(allocate_aligned(kAlignment, rounded), {});
  }
  std::size_t capacity_bytes = (size_bytes / kHugePage + 1) * kHugePage;
  std::byte* bytes = take_spare(size_bytes, capacity_bytes);
  if (bytes == nullptr) {
    bytes = allocate_aligned(kHugePage, capacity_bytes);
#if defined(MADV_HUGEPAGE)
    // A hint: without huge pages it is only slower. Not for results that are too large to be kept:
    // the system may need seconds to find so many huge pages.
    if (capacity_bytes <= kMostSpare) madvise(bytes, capacity_bytes, MADV_HUGEPAGE);
#endif
  }
  return OutputBytes(bytes, {.pool = shared_from_this(), .capacity_bytes = capacity_bytes});
}

// The spare memory, unless it is too small or most of it would be unused.
std::byte* OutputPool::take_spare(std::size_t size_bytes, std::size_t& capacity_bytes) {
  const std::lock_guard guard(mutex_);
  if (spare_bytes_ < size_bytes || spare_bytes_ / 2 > size_bytes) return nullptr;
  capacity_bytes = std::exchange(spare_bytes_, 0);
  return std::exchange(spare_, nullptr);
}

void OutputPool::give_back(std::byte* bytes, std::size_t capacity_bytes) {
  if (capacity_bytes <= kMostSpare) {
    const std::lock_guard guard(mutex_);
    std::swap(spare_, bytes);
    spare_bytes_ = capacity_bytes;
  }
  std::free(bytes);
}

}  // namespace hvd
