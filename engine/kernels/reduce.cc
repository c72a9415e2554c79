#include "kernels/reduce.h"

#include "kernels/kernel_table.h"

#if defined(HVD_X86_KERNELS)
#include <cpuid.h>
#endif

namespace hvd {
namespace {

#if defined(HVD_X86_KERNELS)

// Asks the processor itself because Clang's __builtin_cpu_supports did not always know it.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && has_f16c();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#endif

const KernelTable* find_best_kernels() {
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (const KernelTable* table = kernel_table(isa)) return table;
  }
  return &kPortableKernels;
}

const KernelTable* const kBestKernels = find_best_kernels();

Kernel find_kernel(const KernelTable& table, const ReduceSpec& spec) {
  if (spec.op == ReduceOp::kAdasum) return table.weighted_sums[static_cast<int>(spec.dtype)];
  const bool is_scaled = spec.prescale != 1.0 || spec.postscale != 1.0;
  return table.kernels[is_scaled ? 1 : 0][static_cast<int>(spec.dtype)][static_cast<int>(spec.op)];
}

}  // namespace

const KernelTable& best_kernel_table() { return *kBestKernels; }

const KernelTable* kernel_table(Isa isa) {
  if (isa == Isa::kPortable) return &kPortableKernels;
#if defined(HVD_X86_KERNELS)
  if (isa == Isa::kAvx2 && has_avx2()) return &kAvx2Kernels;
  if (isa == Isa::kAvx512 && has_avx512()) return &kAvx512Kernels;
#endif
  return nullptr;
}

void reduce_with(const KernelTable& table, const ReduceSpec& spec,
                 std::span<const std::byte* const> sources, std::byte* dst, std::byte* copy,
                 std::size_t count) {
  const Block block{sources.data(),
                    sources.size(),
                    dst,
                    copy,
                    count,
                    spec.prescale,
                    spec.postscale,
                    spec.op == ReduceOp::kAverage ? spec.divisor : 1,
                    spec.weights};
  find_kernel(table, spec)(block);
}

void reduce(const ReduceSpec& spec, std::span<const std::byte* const> sources, std::byte* dst,
            std::byte* copy, std::size_t count) {
  reduce_with(*kBestKernels, spec, sources, dst, copy, count);
}

const char* unsupported_reason(const ReduceSpec& spec) {
  if (static_cast<int>(spec.dtype) >= kDtypeCount) return "unknown dtype";
  if (static_cast<int>(spec.op) >= kReduceOpCount) return "unknown reduce op";
  if (spec.op == ReduceOp::kAverage && spec.divisor < 1) {
    return "Average over no ranks; the divisor must be at least 1";
  }
  if (find_kernel(kPortableKernels, spec) != nullptr) return nullptr;
  if (spec.op == ReduceOp::kAdasum) {
    return "Adasum combines vectors of real numbers; use float16, bfloat16, float32 or float64";
  }
  if (spec.dtype != Dtype::kBool) return "unknown reduce op";
  if (spec.op == ReduceOp::kAverage) {
    return "bool has no average; use Sum (logical or), Product (logical and) or another dtype";
  }
  return "bool cannot be scaled; leave prescale_factor and postscale_factor at 1";
}

const char* kernel_isa() { return kBestKernels->isa; }

}  // namespace hvd
