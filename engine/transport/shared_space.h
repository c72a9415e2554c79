// The shared memory of a host: a large sparse range of which parts are mapped when they are needed.
//
// Between processes it is a file in memory; for ranks that live in one process (tests, a world of
// one) parts are anonymous mappings. Both are zero where nothing was written.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "transport/region.h"

namespace hvd {

class SharedSpace {
 public:
  // Keeps a descriptor of its own; `fd` may be closed afterwards.
  static std::shared_ptr<SharedSpace> of_file(int fd);
  static std::shared_ptr<SharedSpace> in_process();

  ~SharedSpace();
  SharedSpace(const SharedSpace&) = delete;
  SharedSpace& operator=(const SharedSpace&) = delete;

  // The part that begins at `offset`, a multiple of the page size; all that hold it share it. Any
  // thread.
  std::shared_ptr<Region> map(std::size_t offset, std::size_t size_bytes);
  // Gives the memory of a part back, so that the next mapping finds zeros. REQUIRES: no rank uses
  // the part.
  void discard(std::size_t offset, std::size_t size_bytes);

 private:
  explicit SharedSpace(int fd) : fd_(fd) {}

  const int fd_;  // -1: in this process
  std::mutex mutex_;
  std::map<std::size_t, std::weak_ptr<Region>> parts_;
};

}  // namespace hvd
