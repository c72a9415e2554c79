// A block of memory that all ranks of a host see: a mapped descriptor between processes, an
// anonymous mapping when the ranks are threads of one process (tests, a world of one).
//
// Pages are committed when first touched, so a region may be far larger than what is used of it.
#pragma once

#include <cstddef>
#include <memory>

namespace hvd {

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

}  // namespace hvd
