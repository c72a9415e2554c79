// Interprets kernels in PTX text for the stand-in for libcuda. It supports the
// instructions of the engine's kernels; an unknown instruction ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ptx {

// Memory of a device as the CPU sees it.
struct Stretch {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::byte* host = nullptr;  // null: there is none
};
using FindStretch = std::function<Stretch(std::uint64_t address)>;

struct Thread;
using Step = std::function<void(Thread&)>;

struct Kernel {
  std::vector<std::size_t> parameter_bytes;
  std::vector<std::size_t> parameter_at;
  std::vector<std::uint64_t> registers;  // at the start: zeros, and the constants of the text
  std::vector<Step> steps;
};

struct Grid {
  std::uint32_t blocks;  // of a row
  std::uint32_t rows;
  std::uint32_t threads;  // of a block
};

// Kernels by name.
std::map<std::string, Kernel> parse(const std::string& text);
// A copy of a launch's arguments.
std::vector<std::byte> pack(const Kernel& kernel, void* const* arguments);
void run(const Kernel& kernel, Grid grid, const std::vector<std::byte>& parameters,
         const FindStretch& find_stretch);

}  // namespace ptx
