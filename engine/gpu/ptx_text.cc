#include "gpu/ptx_text.h"

namespace hvd {

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
    // Old GPUs have no instructions for it. Rounds to nearest even; a NaN stays a NaN.
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

std::string ptx_kernel(const std::string& name, const std::vector<PtxParameter>& parameters,
                       const std::string& registers, const std::string& body) {
  std::string declarations;
  std::string loads;
  for (const auto& [type, parameter, loaded_to] : parameters) {
    declarations += (declarations.empty() ? ".param ." : ",\n.param .") + type + " " + parameter;
    if (!loaded_to.empty())
      loads += "ld.param." + type + " " + loaded_to + ", [" + parameter + "];\n";
  }
  return ".visible .entry " + name + "(\n" + declarations +
         "\n)\n{\n"
         ".reg .pred %p, %q;\n"
         ".reg .b16 %half;\n"
         ".reg .b32 %bits, %upper, %odd, %block, %threads, %thread;\n"
         ".reg .b64 %i, %step, %at, %in, %to, %wide;\n" +
         registers +
         "mov.u32 %block, %ctaid.x;\n"
         "mov.u32 %threads, %ntid.x;\n"
         "mov.u32 %thread, %tid.x;\n"
         "mul.wide.u32 %i, %block, %threads;\n"
         "cvt.u64.u32 %wide, %thread;\n"
         "add.u64 %i, %i, %wide;\n"
         "mov.u32 %block, %nctaid.x;\n"
         "mul.wide.u32 %step, %block, %threads;\n" +
         loads + body + "END:\nret;\n}\n";
}

bool is_ptx_float(const std::string& type) { return type[0] == 'f'; }

std::string ptx_multiply(const std::string& type, const std::string& to, const std::string& a,
                         const std::string& b) {
  const std::string how = is_ptx_float(type) ? "rn." : "lo.";
  return "mul." + how + type + " " + to + ", " + a + ", " + b + ";\n";
}

}  // namespace hvd
