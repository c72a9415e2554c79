// How the elements of an allreduce travel between hosts.
//
// The numbers are part of the seam to Python.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace hvd {

enum class LinkFormat : std::uint8_t {
  // The engine's setting decides (runtime/link_formats.h); never in a request in flight.
  kAsSet = 0,
  kExact = 1,
  kInt8 = 2,
  kFp8 = 3,
  kInt4 = 4,
  kMxfp8 = 5,
  // The tuning of the bucket decides (core/tuning.h).
  kTuned = 6,
};
inline constexpr int kLinkFormatCount = 7;

// As in Python and in the environment.
inline constexpr const char* kLinkFormatNames[kLinkFormatCount] = {"as set", "none",  "int8", "fp8",
                                                                   "int4",   "mxfp8", "tuned"};

constexpr const char* name_of(LinkFormat format) {
  return static_cast<int>(format) < kLinkFormatCount ? kLinkFormatNames[static_cast<int>(format)]
                                                     : "unknown compression";
}
constexpr bool is_low_bit(LinkFormat format) {
  return format >= LinkFormat::kInt8 && format < LinkFormat::kTuned;
}
constexpr bool may_be_low_bit(LinkFormat format) { return format >= LinkFormat::kInt8; }
// Whether bytes can travel in it.
constexpr bool is_decided(LinkFormat format) {
  return format == LinkFormat::kExact || is_low_bit(format);
}
// A request's format, where kTuned stands for `tuned`.
constexpr LinkFormat decided(LinkFormat format, LinkFormat tuned) {
  return format == LinkFormat::kTuned ? tuned : format;
}

// Elements that are coded together, and the bytes of such a block on a link: codes, and a word of
// scales (kernels/low_bit.h).
inline constexpr std::size_t kLowBitBlock = 128;
constexpr std::size_t low_bit_block_bytes(LinkFormat format) {
  return (format == LinkFormat::kInt4 ? kLowBitBlock / 2 : kLowBitBlock) + sizeof(std::uint32_t);
}

constexpr std::size_t low_bit_bytes(LinkFormat format, std::size_t elements) {
  return (elements + kLowBitBlock - 1) / kLowBitBlock * low_bit_block_bytes(format);
}

// Whether tensors of this dtype can travel in a low-bit format.
constexpr bool has_low_bits(Dtype dtype) {
  return dtype == Dtype::kFloat32 || dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16;
}

// What a low-bit format needs, for messages.
inline constexpr const char* kLowBitDtypes = "float32, float16 or bfloat16";

}  // namespace hvd
