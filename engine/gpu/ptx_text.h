// The common text of kernels written as PTX: how dtypes are loaded, computed with and stored.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"

namespace hvd {

// Every GPU of the last ten years understands it.
inline constexpr const char* kPtxHeader = ".version 6.0\n.target sm_50\n.address_size 64\n";

// How kernels compute with a dtype: the type of its registers, and the text to load and to store an
// element. The text uses %v, %acc, %in and %to, and registers that every kernel has.
struct Arithmetic {
  const char* type;
  const char* load;
  const char* store;
};
Arithmetic arithmetic_of(Dtype dtype);

struct PtxParameter {
  std::string type;
  std::string name;
  std::string loaded_to = {};  // a register; empty: the body reads it, as it does arrays
};
// A kernel. A thread takes every %step-th element, from %i on. `registers`: additional to %i,
// %step, %at, %in, %to, %p, %q and the registers of loads and stores. The label END follows `body`.
std::string ptx_kernel(const std::string& name, const std::vector<PtxParameter>& parameters,
                       const std::string& registers, const std::string& body);

// Whether the type of a register is a floating-point type.
bool is_ptx_float(const std::string& type);
// %to = a * b. The rounding is explicit, so that the driver does not fuse the multiplication with
// an addition.
std::string ptx_multiply(const std::string& type, const std::string& to, const std::string& a,
                         const std::string& b);

}  // namespace hvd
