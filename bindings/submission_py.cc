#include "bindings/submission_py.h"

#include <algorithm>
#include <string>

namespace nb = nanobind;

namespace hvd {

namespace {

void check_output(const Request& of_in, const Request& of_out, bool is_near) {
  const bool has_shape = std::ranges::equal(of_out.shape(), of_in.shape());
  if (of_out.dtype == of_in.dtype && has_shape && is_near) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name_of(of_in.kind)) +
                  ": the output must have the input's shape, dtype and device");
}

std::string_view text_of(nb::handle name) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) throw nb::python_error();  // UnicodeEncodeError is a ValueError
  return {text, static_cast<std::size_t>(size)};
}

}  // namespace

Operand read(const TensorReader& reader, const Operation& operation, nb::handle in,
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
    operand.tensor.out = result.address;
  }
  return operand;
}

Operand describe(const Operation& operation, std::uintptr_t in, std::uintptr_t out,
                 const std::vector<std::int64_t>& shape, int dtype, int device) {
  if (shape.size() > Request::kMaxDims) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name_of(operation.kind)) + ": the tensor has " +
                    std::to_string(shape.size()) + " dimensions; at most " +
                    std::to_string(Request::kMaxDims) + " are supported");
  }
  Operand operand{.request = operation.request(),
                  .tensor = {.in = reinterpret_cast<const std::byte*>(in),
                             .out = reinterpret_cast<std::byte*>(out),
                             .device = device}};
  operand.request.dtype = static_cast<Dtype>(dtype);
  operand.request.dims_count = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), operand.request.dims.begin());
  return operand;
}

HandleId submit_one(Engine& engine, const Operation& operation, const Operand& operand,
                    const Streams* streams, std::optional<std::string_view> name,
                    std::span<const std::int64_t> splits, Intent intent) {
  const Submission submission{.name = name.value_or(std::string_view{}),
                              .requests = {&operand.request, 1},
                              .tensors = {&operand.tensor, 1},
                              .splits = splits,
                              .dependency = depart(engine, {&operand.tensor, 1}, streams)};
  return engine.submit(operation.process_set, {&submission, 1}, intent);
}

Call::Call(const Operation& operation, std::size_t count, const Streams* streams)
    : process_set_(operation.process_set), streams_(streams) {
  requests_.reserve(count);
  tensors_.reserve(count);
}

void Call::add(const Operand& operand) {
  requests_.push_back(operand.request);
  tensors_.push_back(operand.tensor);
}

HandleId Call::submit_group(Engine& engine, std::optional<std::string_view> name, Intent intent) {
  for (Request& request : requests_) request.is_grouped = true;
  const Submission submission{.name = name.value_or(std::string_view{}),
                              .requests = requests_,
                              .tensors = tensors_,
                              .splits = {},
                              .dependency = depart(engine, tensors_, streams_)};
  return engine.submit(process_set_, {&submission, 1}, intent);
}

HandleId Call::submit_each(Engine& engine, std::span<const std::string_view> names, Intent intent) {
  if (names.size() != tensors_.size()) throw nb::value_error("one name for each tensor");
  const StreamDependencyPtr dependency = depart(engine, tensors_, streams_);
  std::vector<Submission> submissions;
  submissions.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    submissions.push_back({.name = names[i],
                           .requests = {&requests_[i], 1},
                           .tensors = {&tensors_[i], 1},
                           .splits = {},
                           .dependency = tensors_[i].device == kHostDevice ? nullptr : dependency});
  }
  return engine.submit(process_set_, submissions, intent);
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
