#include "kernels/low_bit.h"

#include "kernels/kernel_table.h"

namespace hvd {

namespace {

const LowBitKernels& kernels_for(const KernelTable& table, LinkFormat format) {
  return table.low_bits[static_cast<int>(format)];
}

}  // namespace

void encode_with(const KernelTable& table, LinkFormat format, Dtype dtype, const std::byte* from,
                 std::size_t count, std::byte* coded, const Coding& coding) {
  kernels_for(table, format).encode[static_cast<int>(dtype)]({&from, 1, coded, count, coding});
}

void add_coded_with(const KernelTable& table, LinkFormat format,
                    std::span<const std::byte* const> sources, std::size_t count, std::byte* coded,
                    const Coding& coding) {
  kernels_for(table, format).add_coded({sources.data(), sources.size(), coded, count, coding});
}

void decode_with(const KernelTable& table, LinkFormat format, Dtype dtype, const std::byte* coded,
                 std::size_t count, std::byte* to, float factor) {
  kernels_for(table, format)
      .decode[static_cast<int>(dtype)]({&coded, 1, to, count, {.factor = factor}});
}

void add_errors_with(const KernelTable& table, Dtype dtype, const std::byte* from,
                     const float* errors, std::size_t count, std::byte* to) {
  const std::byte* const sources[] = {from, reinterpret_cast<const std::byte*>(errors)};
  table.add_errors[static_cast<int>(dtype)]({sources, 2, to, count, {}});
}

void encode(LinkFormat format, Dtype dtype, const std::byte* from, std::size_t count,
            std::byte* coded, const Coding& coding) {
  encode_with(best_kernel_table(), format, dtype, from, count, coded, coding);
}

void add_coded(LinkFormat format, std::span<const std::byte* const> sources, std::size_t count,
               std::byte* coded, const Coding& coding) {
  add_coded_with(best_kernel_table(), format, sources, count, coded, coding);
}

void decode(LinkFormat format, Dtype dtype, const std::byte* coded, std::size_t count,
            std::byte* to, float factor) {
  decode_with(best_kernel_table(), format, dtype, coded, count, to, factor);
}

void add_errors(Dtype dtype, const std::byte* from, const float* errors, std::size_t count,
                std::byte* to) {
  add_errors_with(best_kernel_table(), dtype, from, errors, count, to);
}

}  // namespace hvd
