// The shared memory of a host: a large sparse range. Parts of it are mapped when they are needed.
//
// Between processes it is a file in memory; for ranks that live in one process (tests, a world of
// one) parts are anonymous mappings. Both are zero where nothing was written.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "core/descriptor.h"

namespace hvd {

// A block of memory that all ranks of a host see: a mapped descriptor between processes, an
// anonymous mapping when the ranks are threads of one process (tests, a world of one).
//
// Pages are committed when first touched, so a region may be far larger than its used part.
class Region {
 public:
  // Maps `size_bytes` at `offset` of the file behind `fd`, which may be closed afterwards.
  static std::shared_ptr<Region> map(int fd, std::size_t offset, std::size_t size_bytes);
  // Zeroed memory for ranks that live in this process.
  static std::shared_ptr<Region> allocate(std::size_t size_bytes);

  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::byte* data() const { return data_; }

 private:
  Region(std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  static std::shared_ptr<Region> make(int fd, std::size_t offset, int flags,
                                      std::size_t size_bytes);

  std::byte* data_;
  std::size_t size_bytes_;
};

class SharedSpace {
 public:
  // Keeps a descriptor of its own; `fd` may be closed afterwards.
  static std::shared_ptr<SharedSpace> of_file(int fd);
  static std::shared_ptr<SharedSpace> in_process();

  // The part that begins at `offset`, a multiple of the page size. All holders share it. Any
  // thread.
  std::shared_ptr<Region> map(std::size_t offset, std::size_t size_bytes);
  // Gives the memory of a part back, so that the next mapping finds zeros. REQUIRES: no rank uses
  // the part.
  void discard(std::size_t offset, std::size_t size_bytes);

 private:
  explicit SharedSpace(int fd) : fd_(fd) {}

  const Descriptor fd_;  // -1: in this process
  std::mutex mutex_;
  std::map<std::size_t, std::weak_ptr<Region>> parts_;
};

}  // namespace hvd
