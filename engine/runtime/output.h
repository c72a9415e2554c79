// Memory that the engine allocates for a result whose size is known only after negotiation.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

namespace hvd {

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

struct Output {
  std::unique_ptr<std::byte, FreeBytes> bytes;
  std::vector<std::int64_t> shape;

  // Aligned for vector instructions; throws std::bad_alloc. Zero bytes still give an address.
  static std::unique_ptr<std::byte, FreeBytes> allocate(std::size_t size_bytes);
};

}  // namespace hvd
