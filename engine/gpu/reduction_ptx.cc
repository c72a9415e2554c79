#include "gpu/reduction_ptx.h"

#include <array>

#include "gpu/ptx_text.h"

namespace hvd {

namespace {

constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

// The first NaN and the first of equal values stay.
std::string choose(const std::string& type, const char* comparison) {
  std::string text = "setp." + std::string(comparison) + "." + type + " %p, %acc, %v;\n";
  if (is_ptx_float(type)) {
    text += "setp.nan." + type + " %q, %acc, %acc;\n";
    text += "or.pred %p, %p, %q;\n";
  }
  return text + "selp." + type + " %acc, %acc, %v, %p;\n";
}

std::string reduce_next(Dtype dtype, ReduceOp op) {
  const std::string type = arithmetic_of(dtype).type;
  if (dtype == Dtype::kBool) {
    const bool is_or = op == ReduceOp::kSum || op == ReduceOp::kMax;
    return std::string(is_or ? "or" : "and") + ".b32 %acc, %acc, %v;\n";
  }
  switch (op) {
    case ReduceOp::kSum:
      return "add." + std::string(is_ptx_float(type) ? "rn." : "") + type + " %acc, %acc, %v;\n";
    case ReduceOp::kProduct:
      return ptx_multiply(type, "%acc", "%acc", "%v");
    case ReduceOp::kMin:
      return choose(type, "le");
    default:
      return choose(type, "ge");
  }
}

// The element of the source at which %source points.
std::string load_next(Dtype dtype) {
  const Arithmetic arithmetic = arithmetic_of(dtype);
  std::string text =
      "ld.param.u64 %in, [%source];\n"
      "add.u64 %in, %in, %at;\n";
  text += arithmetic.load;
  if (is_ptx_float(arithmetic.type)) text += ptx_multiply(arithmetic.type, "%v", "%v", "%pre");
  return text;
}

std::string registers(const std::string& type) {
  return ".reg .b32 %number, %sources;\n"
         ".reg .b64 %count, %out, %first, %source;\n"
         ".reg .f64 %factor;\n"
         ".reg ." +
         type + " %acc, %v, %pre, %post;\n";
}

std::string load_factors(const std::string& type) {
  if (!is_ptx_float(type)) return "";
  const std::string convert = type == "f64" ? "mov.f64 " : "cvt.rn.f32.f64 ";
  return "ld.param.f64 %factor, [prescale];\n" + convert + "%pre, %factor;\n" +
         "ld.param.f64 %factor, [postscale];\n" + convert + "%post, %factor;\n";
}

std::string kernel(Dtype dtype, ReduceOp op) {
  const Arithmetic arithmetic = arithmetic_of(dtype);
  const std::string type = arithmetic.type;
  std::string body = "mov.u64 %first, from;\n" + load_factors(type) +
                     "EACH:\n"
                     "setp.ge.u64 %p, %i, %count;\n"
                     "@%p bra END;\n"
                     "mul.lo.u64 %at, %i, " +
                     std::to_string(size_of(dtype)) + ";\n" +
                     "mov.u64 %source, %first;\n"
                     "mov.u32 %number, 1;\n" +
                     load_next(dtype) + "mov." + type + " %acc, %v;\n" +
                     "NEXT:\n"
                     "setp.ge.u32 %p, %number, %sources;\n"
                     "@%p bra STORE;\n"
                     "add.u64 %source, %source, 8;\n" +
                     load_next(dtype) + reduce_next(dtype, op) +
                     "add.u32 %number, %number, 1;\n"
                     "bra NEXT;\n"
                     "STORE:\n";
  if (is_ptx_float(type)) body += ptx_multiply(type, "%acc", "%acc", "%post");
  body += std::string("add.u64 %to, %out, %at;\n") + arithmetic.store +
          "add.u64 %i, %i, %step;\n"
          "bra EACH;\n";
  return ptx_kernel(reduction_kernel_name(dtype, op),
                    {{"u64", "to", "%out"},
                     {"u64", "count", "%count"},
                     {"u32", "sources", "%sources"},
                     {"f64", "prescale"},
                     {"f64", "postscale"},
                     {"align 8 .b8", "from[" + std::to_string(kMostSources * 8) + "]"}},
                    registers(type), body);
}

}  // namespace

std::string reduction_ptx() {
  std::string text = kPtxHeader;
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (const ReduceOp op : kOps) text += kernel(static_cast<Dtype>(dtype), op);
  }
  return text;
}

std::string reduction_kernel_name(Dtype dtype, ReduceOp op) {
  return "hvd_" + std::string(name_of(op)) + "_" + name_of(dtype);
}

bool has_reduction_kernel(ReduceOp op) {
  for (const ReduceOp each : kOps) {
    if (each == op) return true;
  }
  return false;
}

}  // namespace hvd
