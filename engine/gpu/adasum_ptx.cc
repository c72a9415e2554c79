#include "gpu/adasum_ptx.h"

#include <array>

#include "gpu/ptx_text.h"

namespace hvd {

namespace {

constexpr std::array kDtypes{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64};

std::string entry(const std::string& name, const std::string& parameters) {
  return ".visible .entry " + name + "(\n" + parameters + "\n)\n{\n" + kPtxRegisters;
}

std::string end() {
  return "END:\n"
         "ret;\n"
         "}\n";
}

std::string offset_of_element(Dtype dtype) {
  return "mul.lo.u64 %at, %i, " + std::to_string(size_of(dtype)) + ";\n";
}

// An element as double.
std::string load_wide(Dtype dtype, const std::string& from, const std::string& to) {
  const Arithmetic arithmetic = arithmetic_of(dtype);
  const std::string widen = std::string(arithmetic.type) == "f64" ? "mov.f64 " : "cvt.f64.f32 ";
  return "add.u64 %in, " + from + ", %at;\n" + arithmetic.load + widen + to + ", %v;\n";
}

// For each pair of vectors, the second from the first one on.
std::string dots_kernel(Dtype dtype) {
  std::string text = entry(dots_kernel_name(dtype),
                           ".param .u64 to,\n"
                           ".param .u64 count,\n"
                           ".param .u32 vectors,\n"
                           ".param .u64 from,\n"
                           ".param .u64 stride");
  text +=
      ".reg .b32 %first, %second, %vectors;\n"
      ".reg .b64 %begin, %count, %left, %right, %stride, %row;\n"
      ".reg .f64 %sum, %x, %y;\n"
      ".reg ." +
      std::string(arithmetic_of(dtype).type) + " %v, %acc;\n" + kPtxThread;
  text +=
      "mov.u64 %begin, %i;\n"
      "ld.param.u64 %to, [to];\n"
      "mul.lo.u64 %at, %begin, 8;\n"
      "add.u64 %to, %to, %at;\n"
      "mul.lo.u64 %row, %step, 8;\n"
      "ld.param.u64 %count, [count];\n"
      "ld.param.u32 %vectors, [vectors];\n"
      "ld.param.u64 %left, [from];\n"
      "ld.param.u64 %stride, [stride];\n"
      "mov.u32 %first, 0;\n"
      "LEFT:\n"
      "setp.ge.u32 %p, %first, %vectors;\n"
      "@%p bra END;\n"
      "mov.u64 %right, %left;\n"
      "mov.u32 %second, %first;\n"
      "RIGHT:\n"
      "setp.ge.u32 %p, %second, %vectors;\n"
      "@%p bra NEXT;\n"
      "mov.f64 %sum, 0d0000000000000000;\n"
      "mov.u64 %i, %begin;\n"
      "EACH:\n"
      "setp.ge.u64 %p, %i, %count;\n"
      "@%p bra STORE;\n";
  text += offset_of_element(dtype) + load_wide(dtype, "%left", "%x") +
          load_wide(dtype, "%right", "%y") + ptx_multiply("f64", "%x", "%x", "%y");
  return text +
         "add.rn.f64 %sum, %sum, %x;\n"
         "add.u64 %i, %i, %step;\n"
         "bra EACH;\n"
         "STORE:\n"
         "st.global.f64 [%to], %sum;\n"
         "add.u64 %to, %to, %row;\n"
         "add.u64 %right, %right, %stride;\n"
         "add.u32 %second, %second, 1;\n"
         "bra RIGHT;\n"
         "NEXT:\n"
         "add.u64 %left, %left, %stride;\n"
         "add.u32 %first, %first, 1;\n"
         "bra LEFT;\n" +
         end();
}

std::string add_up_kernel() {
  std::string text = entry(kAddUpKernel,
                           ".param .u64 to,\n"
                           ".param .u64 from,\n"
                           ".param .u64 values,\n"
                           ".param .u64 sums");
  text += ".reg .b64 %from, %values, %sums, %number, %out;\n.reg .f64 %sum, %x;\n";
  text += kPtxThread;
  return text +
         "ld.param.u64 %out, [to];\n"
         "ld.param.u64 %from, [from];\n"
         "ld.param.u64 %values, [values];\n"
         "ld.param.u64 %sums, [sums];\n"
         "EACH:\n"
         "setp.ge.u64 %p, %i, %sums;\n"
         "@%p bra END;\n"
         "mul.lo.u64 %at, %i, %values;\n"
         "mul.lo.u64 %at, %at, 8;\n"
         "add.u64 %in, %from, %at;\n"
         "mov.f64 %sum, 0d0000000000000000;\n"
         "mov.u64 %number, 0;\n"
         "NEXT:\n"
         "setp.ge.u64 %p, %number, %values;\n"
         "@%p bra STORE;\n"
         "ld.global.f64 %x, [%in];\n"
         "add.rn.f64 %sum, %sum, %x;\n"
         "add.u64 %in, %in, 8;\n"
         "add.u64 %number, %number, 1;\n"
         "bra NEXT;\n"
         "STORE:\n"
         "mul.lo.u64 %at, %i, 8;\n"
         "add.u64 %to, %out, %at;\n"
         "st.global.f64 [%to], %sum;\n"
         "add.u64 %i, %i, %step;\n"
         "bra EACH;\n" +
         end();
}

// The rank at a place of the tree.
std::string load_rank(const std::string& place, const std::string& to) {
  return "mul.wide.u32 %at, " + place +
         ", 4;\n"
         "add.u64 %in, %order, %at;\n"
         "ld.param.u32 " +
         to + ", [%in];\n";
}

// The dot product of two combinations of vectors, those of the places [a, b) and [c, d), as %value,
// and the size of the terms that it is the sum of, as %size. `name`: of its labels.
std::string dot_of(const std::string& name, const std::string& a, const std::string& b,
                   const std::string& c, const std::string& d) {
  return "mov.f64 %value, 0d0000000000000000;\n"
         "mov.f64 %size, 0d0000000000000000;\n"
         "mov.u32 %row, " +
         a + ";\n" + name +
         "_ROW:\n"
         "setp.ge.u32 %p, %row, " +
         b +
         ";\n"
         "@%p bra " +
         name +
         "_END;\n"
         "mov.u32 %column, " +
         c + ";\n" + name +
         "_COLUMN:\n"
         "setp.ge.u32 %p, %column, " +
         d +
         ";\n"
         "@%p bra " +
         name + "_NEXT;\n" + load_rank("%row", "%left") + load_rank("%column", "%right") +
         // Only the upper triangle is kept: %less * n - %less * (%less + 1) / 2 + %more.
         "setp.le.u32 %p, %left, %right;\n"
         "selp.u32 %less, %left, %right, %p;\n"
         "selp.u32 %more, %right, %left, %p;\n"
         "mul.lo.u32 %index, %less, %vectors;\n"
         "add.u32 %half_square, %less, 1;\n"
         "mul.lo.u32 %half_square, %half_square, %less;\n"
         "shr.u32 %half_square, %half_square, 1;\n"
         "sub.u32 %index, %index, %half_square;\n"
         "add.u32 %index, %index, %more;\n"
         "mul.wide.u32 %at, %index, 8;\n"
         "add.u64 %in, %gram, %at;\n"
         "ld.global.f64 %x, [%in];\n"
         "mul.wide.u32 %at, %left, 8;\n"
         "add.u64 %in, %weights, %at;\n"
         "ld.global.f64 %y, [%in];\n"
         "mul.wide.u32 %at, %right, 8;\n"
         "add.u64 %in, %weights, %at;\n"
         "ld.global.f64 %z, [%in];\n" +
         ptx_multiply("f64", "%y", "%y", "%z") + ptx_multiply("f64", "%x", "%y", "%x") +
         "add.rn.f64 %value, %value, %x;\n"
         "abs.f64 %x, %x;\n"
         "add.rn.f64 %size, %size, %x;\n"
         "add.u32 %column, %column, 1;\n"
         "bra " +
         name + "_COLUMN;\n" + name +
         "_NEXT:\n"
         "add.u32 %row, %row, 1;\n"
         "bra " +
         name + "_ROW;\n" + name + "_END:\n";
}

// Weights of the places [a, b), of a vector that meets another one with whom its dot product is
// %dot. A square that is noise leaves them; 0x3d719799812dea11 is 1e-12.
std::string scale(const std::string& name, const std::string& a, const std::string& b) {
  return dot_of(name, a, b, a, b) +
         "mov.f64 %x, 0d0000000000000000;\n"
         "setp.eq.f64 %p, %value, %x;\n"
         "@%p bra " +
         name + "_DONE;\n" + "mov.f64 %x, 0d3d719799812dea11;\n" +
         ptx_multiply("f64", "%x", "%x", "%size") +
         "setp.lt.f64 %p, %value, %x;\n"
         "@%p bra " +
         name +
         "_DONE;\n"
         "add.rn.f64 %value, %value, %value;\n"
         "div.rn.f64 %value, %dot, %value;\n"
         "mov.f64 %x, 0d3ff0000000000000;\n"
         "sub.rn.f64 %x, %x, %value;\n"
         "mov.u32 %row, " +
         a + ";\n" + name +
         "_EACH:\n"
         "setp.ge.u32 %p, %row, " +
         b +
         ";\n"
         "@%p bra " +
         name + "_DONE;\n" + load_rank("%row", "%left") +
         "mul.wide.u32 %at, %left, 8;\n"
         "add.u64 %in, %weights, %at;\n"
         "ld.global.f64 %y, [%in];\n" +
         ptx_multiply("f64", "%y", "%y", "%x") +
         "st.global.f64 [%in], %y;\n"
         "add.u32 %row, %row, 1;\n"
         "bra " +
         name + "_EACH;\n" + name + "_DONE:\n";
}

std::string set_weights_to_one() {
  return "mov.u32 %row, 0;\n"
         "mov.u64 %in, %weights;\n"
         "mov.f64 %x, 0d3ff0000000000000;\n"
         "ONE:\n"
         "setp.ge.u32 %p, %row, %vectors;\n"
         "@%p bra ONES;\n"
         "st.global.f64 [%in], %x;\n"
         "add.u64 %in, %in, 8;\n"
         "add.u32 %row, %row, 1;\n"
         "bra ONE;\n"
         "ONES:\n";
}

// A thread for each tensor.
std::string weights_kernel() {
  std::string text = entry(kWeightsKernel,
                           ".param .u64 to,\n"
                           ".param .u64 grams,\n"
                           ".param .u32 vectors,\n"
                           ".param .u64 tensors,\n"
                           ".param .u32 joins,\n"
                           ".param .align 8 .b8 join[" +
                               std::to_string(kMostAdasumVectors * 12) +
                               "],\n"
                               ".param .align 8 .b8 order[" +
                               std::to_string(kMostAdasumVectors * 4) + "]");
  text +=
      ".reg .b32 %vectors, %joins, %number, %begin, %middle, %last, %entries;\n"
      ".reg .b32 %row, %column, %left, %right, %less, %more, %index, %half_square;\n"
      ".reg .b64 %tensors, %grams, %gram, %weights, %out, %plan, %order, %gram_bytes, "
      "%weight_bytes;\n"
      ".reg .f64 %value, %size, %dot, %x, %y, %z;\n";
  text += kPtxThread;
  text +=
      "ld.param.u64 %out, [to];\n"
      "ld.param.u64 %grams, [grams];\n"
      "ld.param.u32 %vectors, [vectors];\n"
      "ld.param.u64 %tensors, [tensors];\n"
      "ld.param.u32 %joins, [joins];\n"
      "mov.u64 %order, order;\n"
      "mul.wide.u32 %weight_bytes, %vectors, 8;\n"
      "add.u32 %entries, %vectors, 1;\n"
      "mul.lo.u32 %entries, %entries, %vectors;\n"
      "shr.u32 %entries, %entries, 1;\n"
      "mul.wide.u32 %gram_bytes, %entries, 8;\n"
      "EACH:\n"
      "setp.ge.u64 %p, %i, %tensors;\n"
      "@%p bra END;\n"
      "mul.lo.u64 %gram, %i, %gram_bytes;\n"
      "add.u64 %gram, %grams, %gram;\n"
      "mul.lo.u64 %weights, %i, %weight_bytes;\n"
      "add.u64 %weights, %out, %weights;\n";
  text += set_weights_to_one();
  text +=
      "mov.u64 %plan, join;\n"
      "mov.u32 %number, 0;\n"
      "JOIN:\n"
      "setp.ge.u32 %p, %number, %joins;\n"
      "@%p bra JOINED;\n"
      "ld.param.u32 %begin, [%plan];\n"
      "add.u64 %plan, %plan, 4;\n"
      "ld.param.u32 %middle, [%plan];\n"
      "add.u64 %plan, %plan, 4;\n"
      "ld.param.u32 %last, [%plan];\n"
      "add.u64 %plan, %plan, 4;\n";
  text += dot_of("DOT", "%begin", "%middle", "%middle", "%last") + "mov.f64 %dot, %value;\n" +
          scale("LEFT", "%begin", "%middle") + scale("RIGHT", "%middle", "%last");
  return text +
         "add.u32 %number, %number, 1;\n"
         "bra JOIN;\n"
         "JOINED:\n"
         "add.u64 %i, %i, %step;\n"
         "bra EACH;\n" +
         end();
}

// The element of the vector at %vector, times its weight; both move on.
std::string load_weighed(Dtype dtype) {
  const Arithmetic arithmetic = arithmetic_of(dtype);
  const std::string type = arithmetic.type;
  const std::string convert = type == "f64" ? "mov.f64 " : "cvt.rn.f32.f64 ";
  return "ld.global.f64 %x, [%weight];\n" + ptx_multiply("f64", "%x", "%x", "%factor") + convert +
         "%scale, %x;\n" + "add.u64 %in, %vector, %at;\n" + arithmetic.load +
         ptx_multiply(type, "%v", "%v", "%scale") +
         "add.u64 %weight, %weight, 8;\n"
         "add.u64 %vector, %vector, %stride;\n";
}

std::string weighted_sum_kernel(Dtype dtype) {
  const Arithmetic arithmetic = arithmetic_of(dtype);
  const std::string type = arithmetic.type;
  std::string text = entry(weighted_sum_kernel_name(dtype),
                           ".param .u64 to,\n"
                           ".param .u64 count,\n"
                           ".param .u32 vectors,\n"
                           ".param .u64 from,\n"
                           ".param .u64 stride,\n"
                           ".param .u64 weights,\n"
                           ".param .f64 factor");
  text +=
      ".reg .b32 %number, %vectors;\n"
      ".reg .b64 %count, %out, %from, %vector, %stride, %weights, %weight;\n"
      ".reg .f64 %x, %factor;\n"
      ".reg ." +
      type + " %acc, %v, %scale;\n" + kPtxThread;
  text +=
      "ld.param.u64 %out, [to];\n"
      "ld.param.u64 %count, [count];\n"
      "ld.param.u32 %vectors, [vectors];\n"
      "ld.param.u64 %from, [from];\n"
      "ld.param.u64 %stride, [stride];\n"
      "ld.param.u64 %weights, [weights];\n"
      "ld.param.f64 %factor, [factor];\n"
      "EACH:\n"
      "setp.ge.u64 %p, %i, %count;\n"
      "@%p bra END;\n";
  text += offset_of_element(dtype) +
          "mov.u64 %vector, %from;\n"
          "mov.u64 %weight, %weights;\n"
          "mov.u32 %number, 1;\n" +
          load_weighed(dtype) + "mov." + type + " %acc, %v;\n" +
          "NEXT:\n"
          "setp.ge.u32 %p, %number, %vectors;\n"
          "@%p bra STORE;\n" +
          load_weighed(dtype) + "add.rn." + type + " %acc, %acc, %v;\n" +
          "add.u32 %number, %number, 1;\n"
          "bra NEXT;\n"
          "STORE:\n"
          "add.u64 %to, %out, %at;\n" +
          arithmetic.store +
          "add.u64 %i, %i, %step;\n"
          "bra EACH;\n";
  return text + end();
}

}  // namespace

std::string adasum_ptx() {
  std::string text = kPtxHeader + add_up_kernel() + weights_kernel();
  for (const Dtype dtype : kDtypes) text += dots_kernel(dtype) + weighted_sum_kernel(dtype);
  return text;
}

std::string dots_kernel_name(Dtype dtype) { return std::string("hvd_dots_") + name_of(dtype); }

std::string weighted_sum_kernel_name(Dtype dtype) {
  return std::string("hvd_weighted_sum_") + name_of(dtype);
}

}  // namespace hvd
