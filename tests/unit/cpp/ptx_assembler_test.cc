// The text of all kernels, for NVIDIA's assembler, which `PTXAS` names; make test-cpp sets it.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "gpu/adasum_ptx.h"
#include "gpu/move_ptx.h"
#include "gpu/reduction_ptx.h"

namespace hvd::test {
namespace {

void check_assembler_takes(const char* module, const std::string& text) {
  const std::string file =
      "/tmp/hvd_" + std::string(module) + "_" + std::to_string(getpid()) + ".ptx";
  std::ofstream(file) << text;
  for (const char* gpu :
       {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121"}) {
    const std::string command =
        std::string(std::getenv("PTXAS")) + " -arch=" + gpu + " -o /dev/null " + file;
    CHECK_MESSAGE(std::system(command.c_str()) == 0, module << " for " << gpu);
  }
  std::remove(file.c_str());
}

TEST_CASE("NVIDIA's assembler takes the kernels for all GPUs" *
          doctest::skip(std::getenv("PTXAS") == nullptr)) {
  check_assembler_takes("reduction", reduction_ptx());
  check_assembler_takes("adasum", adasum_ptx());
  check_assembler_takes("move", move_ptx());
}

}  // namespace
}  // namespace hvd::test
