// The common text of kernels written as PTX: how dtypes are loaded, computed with and stored.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"

namespace hvd {

// Every GPU of the last ten years understands it.
inline constexpr const char* kPtxHeader = ".version 6.0\n.target sm_50\n.address_size 64\n";

// How a dtype is computed with: the type of its registers, and the ways from and to memory, which
// use %v, %acc, %in and %to, and registers that every kernel has.
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
// A kernel. Threads take every %step-th element, from %i on. `registers`: beside %i, %step, %at,
// %in, %to, %p, %q and those that loads and stores use. `body` ends at the label END, which the
// kernel has behind it.
std::string ptx_kernel(const std::string& name, const std::vector<PtxParameter>& parameters,
                       const std::string& registers, const std::string& body);

// Of a register's type.
bool is_ptx_float(const std::string& type);
// %to = a * b. With rounding said, so that no multiplication and addition become one that rounds
// once.
std::string ptx_multiply(const std::string& type, const std::string& to, const std::string& a,
                         const std::string& b);

}  // namespace hvd
