#include "transport/shared_space.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "core/error.h"

namespace hvd {

std::shared_ptr<Region> Region::make(int fd, std::size_t offset, int flags,
                                     std::size_t size_bytes) {
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd,
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

std::shared_ptr<SharedSpace> SharedSpace::of_file(int fd) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0) throw system_error("keeping the descriptor of the shared memory", errno);
  return std::shared_ptr<SharedSpace>(new SharedSpace(own));
}

std::shared_ptr<SharedSpace> SharedSpace::in_process() {
  return std::shared_ptr<SharedSpace>(new SharedSpace(-1));
}

std::shared_ptr<Region> SharedSpace::map(std::size_t offset, std::size_t size_bytes) {
  const std::lock_guard guard(mutex_);
  std::weak_ptr<Region>& part = parts_[offset];
  if (auto region = part.lock()) return region;
  auto region = fd_ < 0 ? Region::allocate(size_bytes) : Region::map(fd_, offset, size_bytes);
  part = region;
  return region;
}

void SharedSpace::discard(std::size_t offset, std::size_t size_bytes) {
  if (fd_ < 0) return;  // the mapping went with its last holder
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (fallocate(fd_, mode, static_cast<off_t>(offset), static_cast<off_t>(size_bytes)) != 0) {
    throw system_error("giving shared memory back", errno);
  }
}

}  // namespace hvd
