#include "transport/shared_space.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.h"

namespace hvd {

std::shared_ptr<SharedSpace> SharedSpace::of_file(int fd) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0) throw system_error("keeping the descriptor of the shared memory", errno);
  return std::shared_ptr<SharedSpace>(new SharedSpace(own));
}

std::shared_ptr<SharedSpace> SharedSpace::in_process() {
  return std::shared_ptr<SharedSpace>(new SharedSpace(-1));
}

SharedSpace::~SharedSpace() {
  if (fd_ >= 0) close(fd_);
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
#if defined(__linux__)
  if (fd_ < 0) return;  // the mapping went with its last holder
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (fallocate(fd_, mode, static_cast<off_t>(offset), static_cast<off_t>(size_bytes)) != 0) {
    throw system_error("giving shared memory back", errno);
  }
#else
  static_cast<void>(offset);
  static_cast<void>(size_bytes);
#endif
}

}  // namespace hvd
