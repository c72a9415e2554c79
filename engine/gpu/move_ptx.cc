#include "gpu/move_ptx.h"

#include "gpu/ptx_text.h"

namespace hvd {

namespace {

// Names of a thread's own registers for the element `number` of those that it moves together.
std::string with_number(const std::string& text, const std::string& name, std::size_t number) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(name, done)) != std::string::npos;) {
    result += text.substr(done, at - done) + name + std::to_string(number);
    done = at + name.size();
  }
  return result + text.substr(done);
}

std::string load_element(Dtype dtype, std::size_t number) {
  return with_number("add.u64 %in, %in_first, %offset;\n" + std::string(arithmetic_of(dtype).load),
                     "%v", number);
}

std::string store_element(Dtype dtype, std::size_t number) {
  const std::string type = arithmetic_of(dtype).type;
  const std::string scaled = is_ptx_float(type) ? ptx_multiply(type, "%acc", "%v", "%factor")
                                                : "mov." + type + " %acc, %v;\n";
  return with_number(scaled, "%v", number) + "add.u64 %to, %to_first, %offset;\n" +
         arithmetic_of(dtype).store;
}

const std::string kNextElement = "add.u64 %offset, %offset, %stride;\n";

std::string move_registers(const std::string& type) {
  std::string text =
      ".reg .b32 %row;\n"
      ".reg .b64 %piece, %to_first, %in_first, %count, %offset, %stride, %last, %more;\n"
      ".reg .f64 %given;\n"
      ".reg ." +
      type + " %acc, %factor";
  for (std::size_t number = 0; number < kMovedTogether; ++number) {
    text += ", %v" + std::to_string(number);
  }
  return text + ";\n";
}

std::string find_piece(const std::string& type) {
  std::string text =
      "mov.u64 %piece, pieces;\n"
      "mov.u32 %row, %ctaid.y;\n"
      "mul.wide.u32 %at, %row, " +
      std::to_string(sizeof(MovedPiece)) +
      ";\n"
      "add.u64 %piece, %piece, %at;\n"
      "ld.param.u64 %to_first, [%piece];\n"
      "add.u64 %piece, %piece, 8;\n"
      "ld.param.u64 %in_first, [%piece];\n"
      "add.u64 %piece, %piece, 8;\n"
      "ld.param.u64 %count, [%piece];\n";
  if (!is_ptx_float(type)) return text;
  return text + "ld.param.f64 %given, [factor];\n" +
         (type == "f64" ? "mov.f64 " : "cvt.rn.f32.f64 ") + "%factor, %given;\n";
}

std::string move_kernel(Dtype dtype) {
  const std::string type = arithmetic_of(dtype).type;
  const std::string size = std::to_string(size_of(dtype));
  std::string loads;
  std::string stores;
  for (std::size_t number = 0; number < kMovedTogether; ++number) {
    loads += load_element(dtype, number) + kNextElement;
    stores += store_element(dtype, number) + kNextElement;
  }
  const std::string together = std::to_string(kMovedTogether);
  const std::string body = find_piece(type) + "mul.lo.u64 %stride, %step, " + size +
                           ";\n"
                           "mul.lo.u64 %more, %step, " +
                           std::to_string(kMovedTogether - 1) +
                           ";\n"
                           "MANY:\n"
                           "add.u64 %last, %i, %more;\n"
                           "setp.ge.u64 %p, %last, %count;\n"
                           "@%p bra EACH;\n"
                           "mul.lo.u64 %offset, %i, " +
                           size + ";\n" + loads + "mul.lo.u64 %offset, %i, " + size + ";\n" +
                           stores + "mul.lo.u64 %at, %step, " + together +
                           ";\n"
                           "add.u64 %i, %i, %at;\n"
                           "bra MANY;\n"
                           "EACH:\n"
                           "setp.ge.u64 %p, %i, %count;\n"
                           "@%p bra END;\n"
                           "mul.lo.u64 %offset, %i, " +
                           size + ";\n" + load_element(dtype, 0) + store_element(dtype, 0) +
                           "add.u64 %i, %i, %step;\n"
                           "bra EACH;\n";
  const std::string table = std::to_string(kMostPieces * sizeof(MovedPiece));
  return ptx_kernel(move_kernel_name(dtype),
                    {{"f64", "factor"}, {"align 8 .b8", "pieces[" + table + "]"}},
                    move_registers(type), body);
}

}  // namespace

std::string move_ptx() {
  std::string text = kPtxHeader;
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) text += move_kernel(static_cast<Dtype>(dtype));
  return text;
}

std::string move_kernel_name(Dtype dtype) { return "hvd_move_" + std::string(name_of(dtype)); }

}  // namespace hvd
