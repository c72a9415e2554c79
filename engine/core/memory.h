// Where a tensor lies. The numbers travel between ranks.
#pragma once

#include <cstdint>

namespace hvd {

enum class Memory : std::uint8_t { kHost = 0, kCuda = 1 };
inline constexpr int kMemoryCount = 2;

// The device number of a tensor in host memory. Other numbers are CUDA's numbers of GPUs.
inline constexpr int kHostDevice = -1;

constexpr Memory memory_of(int device) {
  return device == kHostDevice ? Memory::kHost : Memory::kCuda;
}

constexpr const char* name_of(Memory memory) {
  return memory == Memory::kHost ? "host memory" : "GPU memory";
}

}  // namespace hvd
