// The kernels for AVX-512 (F, BW, VL, DQ); compiled with the flags for them.
#include "kernels/all_kernels.h"
#include "kernels/f16c.h"
#include "kernels/kernel_table.h"

namespace hvd {
namespace {

struct Avx512 : F16c {
  static constexpr int kVectorBytes = 64;
};

}  // namespace

constexpr KernelTable kAvx512Kernels = all_kernels_of<Avx512>("avx512");

}  // namespace hvd
