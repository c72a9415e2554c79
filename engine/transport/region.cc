#include "transport/region.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "core/error.h"

namespace hvd {

#if !defined(MAP_NORESERVE)
constexpr int kNoReserve = 0;
#else
constexpr int kNoReserve = MAP_NORESERVE;
#endif

std::shared_ptr<Region> Region::make(int fd, std::size_t offset, int flags,
                                     std::size_t size_bytes) {
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags | kNoReserve, fd,
                    static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    throw system_error("mapping " + std::to_string(size_bytes) + " bytes of shared memory", errno);
  }
  return std::shared_ptr<Region>(new Region(static_cast<std::byte*>(data), size_bytes));
}

std::shared_ptr<Region> Region::map(int fd, std::size_t offset, std::size_t size_bytes) {
  return make(fd, offset, MAP_SHARED, size_bytes);
}

std::shared_ptr<Region> Region::allocate(std::size_t size_bytes) {
  return make(-1, 0, MAP_PRIVATE | MAP_ANONYMOUS, size_bytes);
}

Region::~Region() { munmap(data_, size_bytes_); }

}  // namespace hvd
