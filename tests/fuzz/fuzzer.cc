// Entry points of libFuzzer for one target, HVD_TARGET. With HOROVOD_SEEDS the program writes the
// target's seeds into that folder first.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "targets.h"

namespace {

const hvd::fuzz::Target& target() {
  static const hvd::fuzz::Target& found = hvd::fuzz::target_of(HVD_TARGET);
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*words*/) {
  const char* folder = std::getenv("HOROVOD_SEEDS");
  int number = 0;
  if (folder == nullptr) return 0;
  for (const hvd::fuzz::Bytes& seed : target().seeds()) {
    std::ofstream file(std::string(folder) + "/seed-" + std::to_string(number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target().run(std::as_bytes(std::span(data, size)));
  return 0;
}
