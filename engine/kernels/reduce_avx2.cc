// The kernels for AVX2 with F16C; compiled with the flags for both.
#include "kernels/all_kernels.h"
#include "kernels/f16c.h"
#include "kernels/kernel_table.h"

namespace hvd {
namespace {

struct Avx2 : F16c {
  static constexpr int kVectorBytes = 32;
};

}  // namespace

constexpr KernelTable kAvx2Kernels = all_kernels_of<Avx2>("avx2");

}  // namespace hvd
