#include "gpu/adasum_ptx.h"

#include <array>
#include <string_view>
#include <utility>

#include "gpu/ptx_text.h"

namespace hvd {

namespace {

constexpr std::array kDtypes{Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64};

using Fields = std::initializer_list<std::pair<std::string_view, std::string>>;

// `text` with each $name replaced by its value.
std::string filled(std::string text, Fields fields) {
  for (const auto& [name, value] : fields) {
    std::string field("$");
    field.append(name);
    for (std::size_t at = 0; (at = text.find(field, at)) != std::string::npos;) {
      text.replace(at, field.size(), value);
      at += value.size();
    }
  }
  return text;
}

std::string type_of(Dtype dtype) { return arithmetic_of(dtype).type; }

// An element at %in, as double.
std::string load_wide(Dtype dtype, const std::string& to) {
  const std::string widen = type_of(dtype) == "f64" ? "mov.f64 " : "cvt.f64.f32 ";
  return arithmetic_of(dtype).load + widen + to + ", %v;";
}

// For each pair of vectors: the second runs from the first to the last.
constexpr const char* kDotsRegisters = R"(.reg .b32 %first, %second, %vectors;
.reg .b64 %begin, %count, %left, %right, %stride, %row;
.reg .f64 %sum, %x, %y;
.reg .$type %v, %acc;
)";

constexpr const char* kDots = R"(mov.u64 %begin, %i;
mul.lo.u64 %at, %begin, 8;
add.u64 %to, %to, %at;
mul.lo.u64 %row, %step, 8;
mov.u32 %first, 0;
LEFT:
setp.ge.u32 %p, %first, %vectors;
@%p bra END;
mov.u64 %right, %left;
mov.u32 %second, %first;
RIGHT:
setp.ge.u32 %p, %second, %vectors;
@%p bra NEXT;
mov.f64 %sum, 0d0000000000000000;
mov.u64 %i, %begin;
EACH:
setp.ge.u64 %p, %i, %count;
@%p bra STORE;
mul.lo.u64 %at, %i, $bytes;
add.u64 %in, %left, %at;
$load_x
add.u64 %in, %right, %at;
$load_y
mul.rn.f64 %x, %x, %y;
add.rn.f64 %sum, %sum, %x;
add.u64 %i, %i, %step;
bra EACH;
STORE:
st.global.f64 [%to], %sum;
add.u64 %to, %to, %row;
add.u64 %right, %right, %stride;
add.u32 %second, %second, 1;
bra RIGHT;
NEXT:
add.u64 %left, %left, %stride;
add.u32 %first, %first, 1;
bra LEFT;
)";

constexpr const char* kAddUpRegisters = R"(.reg .b64 %from, %values, %sums, %number, %out;
.reg .f64 %sum, %x;
)";

constexpr const char* kAddUp = R"(EACH:
setp.ge.u64 %p, %i, %sums;
@%p bra END;
mul.lo.u64 %at, %i, %values;
mul.lo.u64 %at, %at, 8;
add.u64 %in, %from, %at;
mov.f64 %sum, 0d0000000000000000;
mov.u64 %number, 0;
NEXT:
setp.ge.u64 %p, %number, %values;
@%p bra STORE;
ld.global.f64 %x, [%in];
add.rn.f64 %sum, %sum, %x;
add.u64 %in, %in, 8;
add.u64 %number, %number, 1;
bra NEXT;
STORE:
mul.lo.u64 %at, %i, 8;
add.u64 %to, %out, %at;
st.global.f64 [%to], %sum;
add.u64 %i, %i, %step;
bra EACH;
)";

// %value: the dot product of two combinations of vectors, at the places [$a, $b) and [$c, $d).
// %size: the sum of the absolute values of its terms. Only the upper triangle of the vectors' dot
// products is there, with the index %less * n - %less * (%less + 1) / 2 + %more.
constexpr const char* kDotOf = R"(mov.f64 %value, 0d0000000000000000;
mov.f64 %size, 0d0000000000000000;
mov.u32 %row, $a;
$label_ROW:
setp.ge.u32 %p, %row, $b;
@%p bra $label_END;
mov.u32 %column, $c;
$label_COLUMN:
setp.ge.u32 %p, %column, $d;
@%p bra $label_NEXT;
mul.wide.u32 %at, %row, 4;
add.u64 %in, %order, %at;
ld.param.u32 %left, [%in];
mul.wide.u32 %at, %column, 4;
add.u64 %in, %order, %at;
ld.param.u32 %right, [%in];
setp.le.u32 %p, %left, %right;
selp.u32 %less, %left, %right, %p;
selp.u32 %more, %right, %left, %p;
mul.lo.u32 %index, %less, %vectors;
add.u32 %half_square, %less, 1;
mul.lo.u32 %half_square, %half_square, %less;
shr.u32 %half_square, %half_square, 1;
sub.u32 %index, %index, %half_square;
add.u32 %index, %index, %more;
mul.wide.u32 %at, %index, 8;
add.u64 %in, %gram, %at;
ld.global.f64 %x, [%in];
mul.wide.u32 %at, %left, 8;
add.u64 %in, %weights, %at;
ld.global.f64 %y, [%in];
mul.wide.u32 %at, %right, 8;
add.u64 %in, %weights, %at;
ld.global.f64 %z, [%in];
mul.rn.f64 %y, %y, %z;
mul.rn.f64 %x, %y, %x;
add.rn.f64 %value, %value, %x;
abs.f64 %x, %x;
add.rn.f64 %size, %size, %x;
add.u32 %column, %column, 1;
bra $label_COLUMN;
$label_NEXT:
add.u32 %row, %row, 1;
bra $label_ROW;
$label_END:
)";

std::string dot_of(const std::string& label, const std::string& a, const std::string& b,
                   const std::string& c, const std::string& d) {
  return filled(kDotOf, {{"label", label}, {"a", a}, {"b", b}, {"c", c}, {"d", d}});
}

// Scales the weights of the places [$a, $b), which are one vector. %dot: its dot product with the
// vector that it combines with. %value: its dot product with itself; if that is noise, the weights
// stay. 0d3d719799812dea11 is 1e-12, and 0d3ff0000000000000 is 1.
constexpr const char* kScale = R"($square
mov.f64 %x, 0d0000000000000000;
setp.eq.f64 %p, %value, %x;
@%p bra $label_DONE;
mov.f64 %x, 0d3d719799812dea11;
mul.rn.f64 %x, %x, %size;
setp.lt.f64 %p, %value, %x;
@%p bra $label_DONE;
add.rn.f64 %value, %value, %value;
div.rn.f64 %value, %dot, %value;
mov.f64 %x, 0d3ff0000000000000;
sub.rn.f64 %x, %x, %value;
mov.u32 %row, $a;
$label_EACH:
setp.ge.u32 %p, %row, $b;
@%p bra $label_DONE;
mul.wide.u32 %at, %row, 4;
add.u64 %in, %order, %at;
ld.param.u32 %left, [%in];
mul.wide.u32 %at, %left, 8;
add.u64 %in, %weights, %at;
ld.global.f64 %y, [%in];
mul.rn.f64 %y, %y, %x;
st.global.f64 [%in], %y;
add.u32 %row, %row, 1;
bra $label_EACH;
$label_DONE:
)";

std::string scale(const std::string& label, const std::string& a, const std::string& b) {
  return filled(kScale,
                {{"square", dot_of(label, a, b, a, b)}, {"label", label}, {"a", a}, {"b", b}});
}

// A thread for each tensor.
constexpr const char* kWeightsRegisters =
    R"(.reg .b32 %vectors, %joins, %number, %begin, %middle, %last, %entries;
.reg .b32 %row, %column, %left, %right, %less, %more, %index, %half_square;
.reg .b64 %tensors, %grams, %gram, %weights, %out, %plan, %order, %gram_bytes, %weight_bytes;
.reg .f64 %value, %size, %dot, %x, %y, %z;
)";

constexpr const char* kWeights = R"(mov.u64 %order, order;
mul.wide.u32 %weight_bytes, %vectors, 8;
add.u32 %entries, %vectors, 1;
mul.lo.u32 %entries, %entries, %vectors;
shr.u32 %entries, %entries, 1;
mul.wide.u32 %gram_bytes, %entries, 8;
EACH:
setp.ge.u64 %p, %i, %tensors;
@%p bra END;
mul.lo.u64 %gram, %i, %gram_bytes;
add.u64 %gram, %grams, %gram;
mul.lo.u64 %weights, %i, %weight_bytes;
add.u64 %weights, %out, %weights;
mov.u32 %row, 0;
mov.u64 %in, %weights;
mov.f64 %x, 0d3ff0000000000000;
ONE:
setp.ge.u32 %p, %row, %vectors;
@%p bra ONES;
st.global.f64 [%in], %x;
add.u64 %in, %in, 8;
add.u32 %row, %row, 1;
bra ONE;
ONES:
mov.u64 %plan, join;
mov.u32 %number, 0;
JOIN:
setp.ge.u32 %p, %number, %joins;
@%p bra JOINED;
ld.param.u32 %begin, [%plan];
add.u64 %plan, %plan, 4;
ld.param.u32 %middle, [%plan];
add.u64 %plan, %plan, 4;
ld.param.u32 %last, [%plan];
add.u64 %plan, %plan, 4;
$dot
mov.f64 %dot, %value;
$scale_left
$scale_right
add.u32 %number, %number, 1;
bra JOIN;
JOINED:
add.u64 %i, %i, %step;
bra EACH;
)";

// An element of the vector at %vector, times its weight; both move on.
constexpr const char* kLoadWeighed = R"(ld.global.f64 %x, [%weight];
mul.rn.f64 %x, %x, %factor;
$narrow %scale, %x;
add.u64 %in, %vector, %at;
$load
mul.rn.$type %v, %v, %scale;
add.u64 %weight, %weight, 8;
add.u64 %vector, %vector, %stride;
)";

constexpr const char* kWeightedSumRegisters = R"(.reg .b32 %number, %vectors;
.reg .b64 %count, %out, %from, %vector, %stride, %weights, %weight;
.reg .f64 %x, %factor;
.reg .$type %acc, %v, %scale;
)";

constexpr const char* kWeightedSum = R"(EACH:
setp.ge.u64 %p, %i, %count;
@%p bra END;
mul.lo.u64 %at, %i, $bytes;
mov.u64 %vector, %from;
mov.u64 %weight, %weights;
mov.u32 %number, 1;
$weighed
mov.$type %acc, %v;
NEXT:
setp.ge.u32 %p, %number, %vectors;
@%p bra STORE;
$weighed
add.rn.$type %acc, %acc, %v;
add.u32 %number, %number, 1;
bra NEXT;
STORE:
add.u64 %to, %out, %at;
$put
add.u64 %i, %i, %step;
bra EACH;
)";

std::string dots_kernel(Dtype dtype) {
  const std::string type = type_of(dtype);
  return ptx_kernel(dots_kernel_name(dtype),
                    {{"u64", "to", "%to"},
                     {"u64", "count", "%count"},
                     {"u32", "vectors", "%vectors"},
                     {"u64", "from", "%left"},
                     {"u64", "stride", "%stride"}},
                    filled(kDotsRegisters, {{"type", type}}),
                    filled(kDots, {{"bytes", std::to_string(size_of(dtype))},
                                   {"load_x", load_wide(dtype, "%x")},
                                   {"load_y", load_wide(dtype, "%y")}}));
}

std::string add_up_kernel() {
  return ptx_kernel(kAddUpKernel,
                    {{"u64", "to", "%out"},
                     {"u64", "from", "%from"},
                     {"u64", "values", "%values"},
                     {"u64", "sums", "%sums"}},
                    kAddUpRegisters, kAddUp);
}

std::string weights_kernel() {
  return ptx_kernel(
      kWeightsKernel,
      {{"u64", "to", "%out"},
       {"u64", "grams", "%grams"},
       {"u32", "vectors", "%vectors"},
       {"u64", "tensors", "%tensors"},
       {"u32", "joins", "%joins"},
       {"align 8 .b8", "join[" + std::to_string(kMostAdasumVectors * 12) + "]"},
       {"align 8 .b8", "order[" + std::to_string(kMostAdasumVectors * 4) + "]"}},
      kWeightsRegisters,
      filled(kWeights, {{"dot", dot_of("DOT", "%begin", "%middle", "%middle", "%last")},
                        {"scale_left", scale("LEFT", "%begin", "%middle")},
                        {"scale_right", scale("RIGHT", "%middle", "%last")}}));
}

std::string weighted_sum_kernel(Dtype dtype) {
  const std::string type = type_of(dtype);
  const std::string weighed =
      filled(kLoadWeighed, {{"narrow", type == "f64" ? "mov.f64" : "cvt.rn.f32.f64"},
                            {"load", arithmetic_of(dtype).load},
                            {"type", type}});
  return ptx_kernel(weighted_sum_kernel_name(dtype),
                    {{"u64", "to", "%out"},
                     {"u64", "count", "%count"},
                     {"u32", "vectors", "%vectors"},
                     {"u64", "from", "%from"},
                     {"u64", "stride", "%stride"},
                     {"u64", "weights", "%weights"},
                     {"f64", "factor", "%factor"}},
                    filled(kWeightedSumRegisters, {{"type", type}}),
                    filled(kWeightedSum, {{"type", type},
                                          {"bytes", std::to_string(size_of(dtype))},
                                          {"weighed", weighed},
                                          {"put", arithmetic_of(dtype).store}}));
}

}  // namespace

std::string adasum_ptx() {
  std::string text(kPtxHeader);
  text.append(add_up_kernel()).append(weights_kernel());
  for (const Dtype dtype : kDtypes) text += dots_kernel(dtype) + weighted_sum_kernel(dtype);
  return text;
}

std::string dots_kernel_name(Dtype dtype) { return std::string("hvd_dots_") + name_of(dtype); }

std::string weighted_sum_kernel_name(Dtype dtype) {
  return std::string("hvd_weighted_sum_") + name_of(dtype);
}

}  // namespace hvd
