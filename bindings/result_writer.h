// Results that the engine has allocated, and where a compiled program wants them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "control/request.h"
#include "core/error.h"
#include "core/text.h"
#include "runtime/output.h"

namespace hvd {

class ResultWriter {
 public:
  virtual ~ResultWriter() = default;
  virtual void copy(void* to, const Output& from, std::size_t size_bytes) = 0;
  virtual void clear(void* at, std::size_t size_bytes) = 0;
};

class HostWriter final : public ResultWriter {
 public:
  void copy(void* to, const Output& from, std::size_t size_bytes) override {
    std::memcpy(to, from.bytes.get(), size_bytes);
  }
  void clear(void* at, std::size_t size_bytes) override { std::memset(at, 0, size_bytes); }
};

// Throws Error unless the result has the shape for which the program was compiled, and not only
// because unequal parts happen to have it.
inline void check_result(const Request& request, std::string_view name, const Output& output,
                         std::span<const std::int64_t> expected) {
  const bool has_shape = std::ranges::equal(output.shape, expected);
  if (has_shape && !output.hides_unequal_rows) return;
  const std::string found = has_shape
                                ? "ranks gave different numbers of rows"
                                : "the result has shape " + shape_text(output.shape) +
                                      ", the compiled program expects " + shape_text(expected);
  throw Error(ErrorCode::kInvalidArgument,
              name_of(request) + " '" + std::string(name) + "': " + found +
                  "; in a compiled program every rank must give the same number of rows");
}

}  // namespace hvd
