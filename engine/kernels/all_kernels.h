// The table of all kernels of one instruction set.
//
// Included by the reduce_<isa>.cc files only; see vectors.h for why all of it is unnamed.
#pragma once

#include "kernels/adasum_sweep.h"
#include "kernels/kernel_table.h"
#include "kernels/low_bit_sweep.h"
#include "kernels/sweep.h"

namespace hvd {
namespace {

template <class Isa>
constexpr KernelTable all_kernels_of(const char* isa) {
  KernelTable table = kernels_of<Isa>(isa);
  fill_adasum<Isa, Float16<Isa>>(table, Dtype::kFloat16);
  fill_adasum<Isa, Bfloat16>(table, Dtype::kBfloat16);
  fill_adasum<Isa, Direct<float>>(table, Dtype::kFloat32);
  fill_adasum<Isa, Direct<double>>(table, Dtype::kFloat64);
  fill_low_bits<Isa, LinkFormat::kInt8, Int8Code>(table);
  fill_low_bits<Isa, LinkFormat::kFp8, Fp8Code>(table);
  fill_low_bits<Isa, LinkFormat::kInt4, Int4Code>(table);
  fill_low_bits<Isa, LinkFormat::kMxfp8, Fp8Code, PowersOfTwo>(table);
  fill_errors<Isa>(table);
  return table;
}

}  // namespace
}  // namespace hvd
