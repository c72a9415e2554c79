// Low-bit formats: blocks of kLowBitBlock elements that share a scale, or four, and a code of 8 or
// 4 bits for each element.
//
// A value is code * scale. The scale is the block's largest finite magnitude over the largest code,
// with its mantissa cut to 16 bits. So code * scale is exact in float32, and the error of an
// element is at most half a step: for int8 and int4 the step is the scale, for fp8 (e4m3) it is 1/8
// of the value's power of two, at least scale / 512. Codes are rounded to nearest even. Scales are
// never subnormal: steps below 2^-126 do not exist. Zeros are exact.
//
// mxfp8 has the codes of fp8, and for each 32 elements a scale that is a power of two, at least
// 1/416 of the largest of them and below 1/208. So an element keeps its precision, 1/16, down to
// 1/13,000 of the largest of 32. That largest one has the same precision; with fp8 it has 16 bits.
//
// Stochastic rounding takes the code above or the one below by chance, so that the mean is the
// value to 2^-16 of a step, and the error below a step. The chance of an element is a hash of the
// seed and its number.
//
// A block with values that are not finite has a mark in its scale. It has codes for NaN and for
// both infinities. Its finite values are like those of any other block, but that int4 has two codes
// less for them. mxfp8 has these codes without a mark.
//
// In memory and on links: the scale, a float32 or four exponents of a byte, then n words, 32 for
// codes of 8 bits, 16 for 4 bits. Code k of word j, from the lowest bits on, is that of element
// j + n k, so that no instruction set has to shuffle. The last block of a tensor is filled up with
// zeros.
//
// All instruction sets give the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "core/dtype.h"
#include "core/link_format.h"
#include "core/rounding.h"

namespace hvd {

struct Coding {
  // Where the errors go that coding makes: value before minus value after, times `factor`; 0 for
  // values that are not finite. Null: nowhere.
  float* errors = nullptr;
  float factor = 1.0F;
  Rounding rounding = {};
  std::size_t first = 0;  // number of the first element, for stochastic rounding
};

// Codes `count` elements to low_bit_bytes(format, count) bytes. Errors are written. REQUIRES, for
// all three: is_low_bit(format), has_low_bits(dtype). Pointers need no alignment.
void encode(LinkFormat format, Dtype dtype, const std::byte* from, std::size_t count,
            std::byte* coded, const Coding& coding = {});

// Adds up coded elements in float32, in the order of the sources, and codes the sums. Errors are
// added to what is there. REQUIRES: at least one source.
void add_coded(LinkFormat format, std::span<const std::byte* const> sources, std::size_t count,
               std::byte* coded, const Coding& coding = {});

// Decodes, multiplies by `factor` in float32, and rounds to the dtype.
void decode(LinkFormat format, Dtype dtype, const std::byte* coded, std::size_t count,
            std::byte* to, float factor = 1.0F);

// to[i] = from[i] + errors[i], added in float32 and rounded to the dtype. `to` may equal `from`.
// REQUIRES: has_low_bits(dtype).
void add_errors(Dtype dtype, const std::byte* from, const float* errors, std::size_t count,
                std::byte* to);

}  // namespace hvd
