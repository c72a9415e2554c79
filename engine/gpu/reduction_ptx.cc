#include "gpu/reduction_ptx.h"

#include <array>

namespace hvd {

namespace {

constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

// How a dtype is computed with: the type of its registers, and the ways from and to memory, which
// use %v, %acc, %in and %to.
struct Arithmetic {
  const char* type;
  const char* load;
  const char* store;
};

Arithmetic arithmetic_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUint8:
      return {"u32", "ld.global.u8 %v, [%in];\n", "st.global.u8 [%to], %acc;\n"};
    case Dtype::kInt8:
      return {"s32", "ld.global.s8 %v, [%in];\n", "st.global.s8 [%to], %acc;\n"};
    case Dtype::kUint16:
      return {"u32", "ld.global.u16 %v, [%in];\n", "st.global.u16 [%to], %acc;\n"};
    case Dtype::kInt16:
      return {"s32", "ld.global.s16 %v, [%in];\n", "st.global.s16 [%to], %acc;\n"};
    case Dtype::kInt32:
      return {"s32", "ld.global.s32 %v, [%in];\n", "st.global.s32 [%to], %acc;\n"};
    case Dtype::kInt64:
      return {"s64", "ld.global.s64 %v, [%in];\n", "st.global.s64 [%to], %acc;\n"};
    case Dtype::kFloat32:
      return {"f32", "ld.global.f32 %v, [%in];\n", "st.global.f32 [%to], %acc;\n"};
    case Dtype::kFloat64:
      return {"f64", "ld.global.f64 %v, [%in];\n", "st.global.f64 [%to], %acc;\n"};
    case Dtype::kFloat16:
      return {"f32",
              "ld.global.b16 %half, [%in];\n"
              "cvt.f32.f16 %v, %half;\n",
              "cvt.rn.f16.f32 %half, %acc;\n"
              "st.global.b16 [%to], %half;\n"};
    // Instructions for it came late. Rounds to nearest even; a NaN stays one.
    case Dtype::kBfloat16:
      return {"f32",
              "ld.global.u16 %bits, [%in];\n"
              "shl.b32 %bits, %bits, 16;\n"
              "mov.b32 %v, %bits;\n",
              "mov.b32 %bits, %acc;\n"
              "shr.u32 %upper, %bits, 16;\n"
              "and.b32 %odd, %upper, 1;\n"
              "add.u32 %bits, %bits, %odd;\n"
              "add.u32 %bits, %bits, 32767;\n"
              "shr.u32 %bits, %bits, 16;\n"
              "or.b32 %upper, %upper, 64;\n"
              "setp.nan.f32 %p, %acc, %acc;\n"
              "selp.b32 %bits, %upper, %bits, %p;\n"
              "st.global.u16 [%to], %bits;\n"};
    default:  // bool: any byte that is not zero is true
      return {"u32",
              "ld.global.u8 %v, [%in];\n"
              "setp.ne.u32 %p, %v, 0;\n"
              "selp.u32 %v, 1, 0, %p;\n",
              "st.global.u8 [%to], %acc;\n"};
  }
}

bool is_float(const std::string& type) { return type[0] == 'f'; }

// With rounding said, so that no multiplication and addition become one that rounds once.
std::string multiply(const std::string& type, const std::string& value, const std::string& factor) {
  const std::string how = is_float(type) ? "rn." : "lo.";
  return "mul." + how + type + " " + value + ", " + value + ", " + factor + ";\n";
}

// The first NaN and the first of equal values stay.
std::string choose(const std::string& type, const char* comparison) {
  std::string text = "setp." + std::string(comparison) + "." + type + " %p, %acc, %v;\n";
  if (is_float(type)) {
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
      return "add." + std::string(is_float(type) ? "rn." : "") + type + " %acc, %acc, %v;\n";
    case ReduceOp::kProduct:
      return multiply(type, "%acc", "%v");
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
  if (is_float(arithmetic.type)) text += multiply(arithmetic.type, "%v", "%pre");
  return text;
}

std::string registers(const std::string& type) {
  return ".reg .pred %p, %q;\n"
         ".reg .b16 %half;\n"
         ".reg .b32 %bits, %upper, %odd, %block, %threads, %thread, %number, %sources;\n"
         ".reg .b64 %i, %step, %count, %at, %in, %to, %out, %first, %source, %wide;\n"
         ".reg .f64 %factor;\n"
         ".reg ." +
         type + " %acc, %v, %pre, %post;\n";
}

// Threads take every so-many-th element.
std::string prologue(const std::string& type) {
  std::string text =
      "mov.u32 %block, %ctaid.x;\n"
      "mov.u32 %threads, %ntid.x;\n"
      "mov.u32 %thread, %tid.x;\n"
      "mul.wide.u32 %i, %block, %threads;\n"
      "cvt.u64.u32 %wide, %thread;\n"
      "add.u64 %i, %i, %wide;\n"
      "mov.u32 %block, %nctaid.x;\n"
      "mul.wide.u32 %step, %block, %threads;\n"
      "ld.param.u64 %out, [to];\n"
      "ld.param.u64 %count, [count];\n"
      "ld.param.u32 %sources, [sources];\n"
      "mov.u64 %first, from;\n";
  if (!is_float(type)) return text;
  const std::string convert = type == "f64" ? "mov.f64 " : "cvt.rn.f32.f64 ";
  text += "ld.param.f64 %factor, [prescale];\n" + convert + "%pre, %factor;\n";
  return text + "ld.param.f64 %factor, [postscale];\n" + convert + "%post, %factor;\n";
}

std::string kernel(Dtype dtype, ReduceOp op) {
  const Arithmetic arithmetic = arithmetic_of(dtype);
  const std::string type = arithmetic.type;
  std::string text = ".visible .entry " + reduction_kernel_name(dtype, op) +
                     "(\n"
                     ".param .u64 to,\n"
                     ".param .u64 count,\n"
                     ".param .u32 sources,\n"
                     ".param .f64 prescale,\n"
                     ".param .f64 postscale,\n"
                     ".param .align 8 .b8 from[" +
                     std::to_string(kMostSources * 8) + "]\n)\n{\n";
  text += registers(type) + prologue(type);
  text +=
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
  if (is_float(type)) text += multiply(type, "%acc", "%post");
  return text + "add.u64 %to, %out, %at;\n" + arithmetic.store +
         "add.u64 %i, %i, %step;\n"
         "bra EACH;\n"
         "END:\n"
         "ret;\n"
         "}\n";
}

}  // namespace

// What every GPU of the last ten years understands.
std::string reduction_ptx() {
  std::string text = ".version 6.0\n.target sm_50\n.address_size 64\n";
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
