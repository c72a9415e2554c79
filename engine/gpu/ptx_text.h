// What kernels written as PTX share: how dtypes are loaded, computed with and stored.
#pragma once

#include <string>

#include "core/dtype.h"

namespace hvd {

// What every GPU of the last ten years understands.
inline constexpr const char* kPtxHeader = ".version 6.0\n.target sm_50\n.address_size 64\n";

// How a dtype is computed with: the type of its registers, and the ways from and to memory, which
// use %v, %acc, %in and %to, and the registers of kPtxRegisters.
struct Arithmetic {
  const char* type;
  const char* load;
  const char* store;
};
Arithmetic arithmetic_of(Dtype dtype);

// For kPtxThread and the ways from and to memory.
inline constexpr const char* kPtxRegisters =
    ".reg .pred %p, %q;\n"
    ".reg .b16 %half;\n"
    ".reg .b32 %bits, %upper, %odd, %block, %threads, %thread;\n"
    ".reg .b64 %i, %step, %at, %in, %to, %wide;\n";

// Threads take every %step-th element, from %i on.
inline constexpr const char* kPtxThread =
    "mov.u32 %block, %ctaid.x;\n"
    "mov.u32 %threads, %ntid.x;\n"
    "mov.u32 %thread, %tid.x;\n"
    "mul.wide.u32 %i, %block, %threads;\n"
    "cvt.u64.u32 %wide, %thread;\n"
    "add.u64 %i, %i, %wide;\n"
    "mov.u32 %block, %nctaid.x;\n"
    "mul.wide.u32 %step, %block, %threads;\n";

// Of a register's type.
bool is_ptx_float(const std::string& type);
// %to = a * b. With rounding said, so that no multiplication and addition become one that rounds
// once.
std::string ptx_multiply(const std::string& type, const std::string& to, const std::string& a,
                         const std::string& b);

}  // namespace hvd
