#include "bindings/submission_py.h"

#include <algorithm>
#include <string>

#include "bindings/complex.h"
#include "bindings/submissions.h"
#include "core/text.h"
#include "runtime/tensor_table.h"

namespace nb = nanobind;

namespace hvd {

namespace {

void check_output(const Request& of_in, const Request& of_out, bool is_near) {
  const bool keeps_shape = collective_of(of_in.kind).keeps_shape();
  const bool has_shape = !keeps_shape || std::ranges::equal(of_out.shape(), of_in.shape());
  if (of_out.dtype == of_in.dtype && has_shape && is_near) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string("the output must have the input's ") +
                  (keeps_shape ? "shape, dtype and device" : "dtype and device"));
}

// Added to the dtype of the parts: COMPLEX in src/horovod/core/operations.py.
constexpr int kComplex = 0x100;

void set_flat(Request& request) {
  request.dims = {static_cast<std::int64_t>(request.element_count())};
  request.dims_count = 1;
}

std::string_view text_of(nb::handle name) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) throw nb::python_error();  // UnicodeEncodeError is a ValueError
  return {text, static_cast<std::size_t>(size)};
}

Operand read_unnamed(const TensorReader& reader, const Operation& operation, nb::handle in,
                     nb::handle out) {
  Operand operand{.request = operation.request(), .tensor = {}};
  const TensorReader::Located located = reader.read(in, operand.request);
  operand.tensor.in = located.address;
  operand.tensor.device = located.device;
  if (out.is(in)) {
    operand.tensor.out = located.address;
  } else if (!out.is_none()) {
    Request of_out = operation.request();
    const TensorReader::Located result = reader.read(out, of_out);
    check_output(operand.request, of_out, result.device == located.device);
    operand.tensor.out = address_of(result.address);
    operand.tensor.out_bytes = of_out.size_bytes();
  }
  if (operation.is_flat) set_flat(operand.request);
  return operand;
}

}  // namespace

std::string title_of(const Operation& operation, nb::handle name, const GroupPlace& place) {
  Request request = operation.request();
  request.is_grouped = place.count > 0;
  std::string text = name.is_none() ? name_of(request) : title_of(text_of(name), request);
  if (!request.is_grouped) return text;
  return text + ": " + place_text(place.index, place.count);
}

Operand read(const TensorReader& reader, const Operation& operation, nb::handle name, nb::handle in,
             nb::handle out, const GroupPlace& place) {
  return with_title(operation, name, place,
                    [&] { return read_unnamed(reader, operation, in, out); });
}

Operand describe(const Operation& operation, std::uintptr_t in, std::uintptr_t out,
                 const std::vector<std::int64_t>& shape, int dtype, int device,
                 std::size_t out_bytes) {
  if (shape.size() > Request::kMaxDims) {
    throw Error(ErrorCode::kInvalidArgument,
                "the tensor has " + std::to_string(shape.size()) + " dimensions; at most " +
                    std::to_string(Request::kMaxDims) + " are supported");
  }
  Operand operand{.request = operation.request(),
                  .tensor = {.in = reinterpret_cast<const std::byte*>(in),
                             .out = reinterpret_cast<std::byte*>(out),
                             .device = device,
                             .out_bytes = out_bytes}};
  operand.request.dtype = static_cast<Dtype>(dtype & ~kComplex);
  operand.request.dims_count = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), operand.request.dims.begin());
  if ((dtype & kComplex) != 0) make_complex(operand.request);
  if (operation.is_flat) set_flat(operand.request);
  return operand;
}

HandleId submit_one(Engine& engine, const Operation& operation, const Operand& operand,
                    const Streams* streams, std::optional<std::string_view> name,
                    std::span<const std::int64_t> splits, Intent intent) {
  const Submission submission{.name = name.value_or(std::string_view{}),
                              .title = operation.title,
                              .group = operation.group,
                              .requests = {&operand.request, 1},
                              .tensors = {&operand.tensor, 1},
                              .splits = splits,
                              .dependency = depart(engine, {&operand.tensor, 1}, streams)};
  return engine.submit(operation.process_set, {&submission, 1}, intent);
}

Call::Call(const Operation& operation, std::size_t count, const Streams* streams)
    : operation_(operation), streams_(streams) {
  requests_.reserve(count);
  tensors_.reserve(count);
}

void Call::add(const Operand& operand) {
  requests_.push_back(operand.request);
  tensors_.push_back(operand.tensor);
}

void Call::keep_errors(std::span<const std::uintptr_t> addresses) {
  if (addresses.empty()) return;
  if (addresses.size() != tensors_.size()) throw nb::value_error("one address for each tensor");
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].errors = reinterpret_cast<float*>(addresses[i]);
  }
}

HandleId Call::submit_group(Engine& engine, std::optional<std::string_view> name, Intent intent,
                            std::span<const std::string_view> members) {
  for (Request& request : requests_) request.is_grouped = true;
  std::vector<std::string_view> names{name.value_or(std::string_view{})};
  names.insert(names.end(), members.begin(), members.end());
  if (!names_fit(names.size(), true, tensors_.size())) {
    throw Error(ErrorCode::kInvalidArgument,
                "group '" + std::string(names[0]) + "': " + std::to_string(members.size()) +
                    " names for " + std::to_string(tensors_.size()) + " tensors");
  }
  return submit(engine, names, true, intent);
}

HandleId Call::submit_each(Engine& engine, std::span<const std::string_view> names, Intent intent) {
  if (names.size() != tensors_.size()) throw nb::value_error("one name for each tensor");
  return submit(engine, names, false, intent);
}

HandleId Call::submit(Engine& engine, std::span<const std::string_view> names, bool is_group,
                      Intent intent) {
  const auto dependency = depart(engine, tensors_, streams_);
  auto submissions = submissions_of(names, is_group, requests_, tensors_, {}, dependency);
  for (Submission& submission : submissions) {
    submission.title = operation_.title;
    submission.group = operation_.group;
  }
  return engine.submit(operation_.process_set, submissions, intent);
}

std::optional<std::string_view> name_in(nb::handle name) {
  if (name.is_none()) return std::nullopt;
  return text_of(name);
}

std::vector<std::string_view> names_in(nb::list names) {
  std::vector<std::string_view> result;
  result.reserve(names.size());
  for (const nb::handle name : names) result.push_back(text_of(name));
  return result;
}

}  // namespace hvd
