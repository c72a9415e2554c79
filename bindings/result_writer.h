// Results that the engine has allocated, and where a compiled program wants them.
#pragma once

#include <cstddef>
#include <cstring>

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

}  // namespace hvd
