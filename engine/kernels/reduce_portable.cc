// The kernels for the architecture's baseline: SSE2 on x86-64, NEON on arm64.
#include "kernels/all_kernels.h"
#include "kernels/kernel_table.h"

#if defined(__aarch64__)
#include "kernels/neon_half.h"
#else
#include "kernels/portable_half.h"
#endif

namespace hvd {
namespace {

#if defined(__aarch64__)
constexpr const char* kName = "neon";
using Half = NeonHalf;
#else
constexpr const char* kName = "portable";
using Half = PortableHalf;
#endif

struct Baseline : Half {
  static constexpr int kVectorBytes = 16;
};

}  // namespace

constexpr KernelTable kPortableKernels = all_kernels_of<Baseline>(kName);

}  // namespace hvd
