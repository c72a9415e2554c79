// Memory that the engine allocates for results. Their size is known only after negotiation.
//
// Python gets it without a copy. The memory of one large result is kept for the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "core/dtype.h"
#include "gpu/device_memory.h"

namespace hvd {

class OutputPool;

// Frees a result's memory: a large one goes to its pool.
struct FreeOutput {
  std::shared_ptr<OutputPool> pool;
  std::size_t capacity_bytes = 0;

  void operator()(std::byte* bytes) const;
};
using OutputBytes = std::unique_ptr<std::byte, FreeOutput>;

struct Output {
  OutputBytes bytes;
  std::vector<std::int64_t> shape;
  DeviceBlockPtr block = nullptr;  // in place of `bytes`, for results on a GPU
  // Ranks gave different numbers of rows, though their sum is as if all had given as many as this
  // one. Who knows only that all should be equal does not see it in the shape.
  bool hides_unequal_rows = false;

  std::byte* data() const { return block == nullptr ? bytes.get() : block->data; }
  std::size_t size_bytes(Dtype dtype) const {
    std::size_t size = size_of(dtype);
    for (const std::int64_t dim : shape) size *= static_cast<std::size_t>(dim);
    return size;
  }
};

// Allocates results, and keeps the last large one that was given back for the next result: pages
// that were touched before are faster than new ones. Any thread.
class OutputPool : public std::enable_shared_from_this<OutputPool> {
 public:
  ~OutputPool() { std::free(spare_); }

  // Aligned for vector instructions; throws std::bad_alloc. Zero bytes still give an address.
  OutputBytes allocate(std::size_t size_bytes);
  void give_back(std::byte* bytes, std::size_t capacity_bytes);

 private:
  std::byte* take_spare(std::size_t size_bytes, std::size_t& capacity_bytes);

  std::mutex mutex_;
  std::byte* spare_ = nullptr;
  std::size_t spare_bytes_ = 0;
};

}  // namespace hvd
