// Calls from Python as submissions for the engine.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/tensor_py.h"
#include "runtime/engine.h"

namespace hvd {

// What an operation is, apart from its tensors.
struct Operation {
  Kind kind = Kind::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  LinkFormat format = LinkFormat::kAsSet;
  int process_set = 0;
  bool is_flat = false;                // ranks agree about the number of elements, not about shapes
  std::string title = {}, group = {};  // see Submission

  Request request() const {
    Request request;
    request.kind = kind;
    request.op = op;
    request.root = root;
    request.prescale = prescale;
    request.postscale = postscale;
    request.format = format;
    return request;
  }
};

// One tensor of an operation, as the engine takes it.
struct Operand {
  Request request;
  Tensor tensor;
};

// A tensor's place in its group; 0 of 0: there is no group.
struct GroupPlace {
  std::size_t index = 0;
  std::size_t count = 0;
};

// What errors call the tensor of a call. `name`: of the operation, or None.
std::string title_of(const Operation& operation, nanobind::handle name, const GroupPlace& place);

// What `make` returns. An error about its tensor gets the tensor's title.
template <typename Make>
auto with_title(const Operation& operation, nanobind::handle name, const GroupPlace& place,
                Make&& make) {
  try {
    return make();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kInvalidArgument,
                title_of(operation, name, place) + ": " + error.what());
  }
}

// `name`: of the operation, for errors, or None. `out`: `in` itself for an operation in place, None
// where the engine allocates the result. Throws Error(kInvalidArgument) for a tensor that cannot be
// sent, and where the output does not fit.
Operand read(const TensorReader& reader, const Operation& operation, nanobind::handle name,
             nanobind::handle in, nanobind::handle out, const GroupPlace& place = {});
Operand describe(const Operation& operation, std::uintptr_t in, std::uintptr_t out,
                 const std::vector<std::int64_t>& shape, int dtype, int device = kHostDevice,
                 std::size_t out_bytes = 0);

// `streams`: of the framework whose tensors may be on GPUs; null where none are.
HandleId submit_one(Engine& engine, const Operation& operation, const Operand& operand,
                    const Streams* streams, std::optional<std::string_view> name,
                    std::span<const std::int64_t> splits, Intent intent);

// The tensors of one call: of a group, or of many operations.
class Call {
 public:
  Call(const Operation& operation, std::size_t count, const Streams* streams);

  void add(const Operand& operand);
  // Where the errors of a low-bit format go: by tensor, float32 in host memory as many as it has
  // elements, 0 for nowhere. Empty: nowhere.
  void keep_errors(std::span<const std::uintptr_t> addresses);
  // All tensors as one operation. `members`: their names; empty where they are not known.
  HandleId submit_group(Engine& engine, std::optional<std::string_view> name, Intent intent,
                        std::span<const std::string_view> members = {});
  // Every tensor as an operation of its own.
  HandleId submit_each(Engine& engine, std::span<const std::string_view> names, Intent intent);

 private:
  HandleId submit(Engine& engine, std::span<const std::string_view> names, bool is_group,
                  Intent intent);

  const Operation& operation_;
  const Streams* const streams_;
  std::vector<Request> requests_;
  std::vector<Tensor> tensors_;
};

// Text that lives as long as the Python object. None is no name.
std::optional<std::string_view> name_in(nanobind::handle name);
std::vector<std::string_view> names_in(nanobind::list names);

}  // namespace hvd
