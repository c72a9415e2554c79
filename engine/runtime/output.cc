#include "runtime/output.h"

#include <sys/mman.h>

#include <new>

namespace hvd {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = 2UL << 20;
// From here on the first touch of each small page would cost more than the copy into it.
constexpr std::size_t kManyPages = 2 * kHugePage;

}  // namespace

std::unique_ptr<std::byte, FreeBytes> Output::allocate(std::size_t size_bytes) {
  const std::size_t alignment = size_bytes >= kManyPages ? kHugePage : kAlignment;
  const std::size_t rounded = (size_bytes / alignment + 1) * alignment;
  void* bytes = std::aligned_alloc(alignment, rounded);
  if (bytes == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  // A hint: without huge pages all is well, only slower.
  if (alignment == kHugePage) static_cast<void>(madvise(bytes, rounded, MADV_HUGEPAGE));
#endif
  return std::unique_ptr<std::byte, FreeBytes>(static_cast<std::byte*>(bytes));
}

}  // namespace hvd
