#include "bindings/jax/job.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "bindings/complex.h"
#include "bindings/submissions.h"

namespace hvd::jax {

namespace {

constexpr std::array<std::pair<XLA_FFI_DataType, Dtype>, kDtypeCount + 2> kDtypes{{
    {XLA_FFI_DataType_PRED, Dtype::kBool},
    {XLA_FFI_DataType_S8, Dtype::kInt8},
    {XLA_FFI_DataType_S16, Dtype::kInt16},
    {XLA_FFI_DataType_S32, Dtype::kInt32},
    {XLA_FFI_DataType_S64, Dtype::kInt64},
    {XLA_FFI_DataType_U8, Dtype::kUint8},
    {XLA_FFI_DataType_U16, Dtype::kUint16},
    {XLA_FFI_DataType_F16, Dtype::kFloat16},
    {XLA_FFI_DataType_F32, Dtype::kFloat32},
    {XLA_FFI_DataType_F64, Dtype::kFloat64},
    {XLA_FFI_DataType_BF16, Dtype::kBfloat16},
    // Of complex numbers those of their parts.
    {XLA_FFI_DataType_C64, Dtype::kFloat32},
    {XLA_FFI_DataType_C128, Dtype::kFloat64},
}};

bool is_complex(XLA_FFI_DataType dtype) {
  return dtype == XLA_FFI_DataType_C64 || dtype == XLA_FFI_DataType_C128;
}

// Finds attributes by name. An attribute that is missing or has another type is zero.
class Attributes {
 public:
  explicit Attributes(const XLA_FFI_Attrs& attributes) : attributes_(attributes) {}

  std::int64_t integer(std::string_view name) const { return scalar<std::int64_t>(name); }
  double number(std::string_view name) const { return scalar<double>(name); }
  std::string_view text(std::string_view name) const {
    const void* value = find(name, XLA_FFI_AttrType_STRING);
    if (value == nullptr) return {};
    const auto& span = *static_cast<const XLA_FFI_ByteSpan*>(value);
    return {span.ptr, span.len};
  }

 private:
  template <typename T>
  T scalar(std::string_view name) const {
    T result{};
    const void* value = find(name, XLA_FFI_AttrType_SCALAR);
    if (value != nullptr) {
      std::memcpy(&result, static_cast<const XLA_FFI_Scalar*>(value)->value, sizeof(T));
    }
    return result;
  }
  const void* find(std::string_view name, XLA_FFI_AttrType type) const {
    for (std::int64_t i = 0; i < attributes_.size; ++i) {
      const XLA_FFI_ByteSpan& found = *attributes_.names[i];
      if (std::string_view(found.ptr, found.len) != name) continue;
      return attributes_.types[i] == type ? attributes_.attrs[i] : nullptr;
    }
    return nullptr;
  }

  const XLA_FFI_Attrs& attributes_;
};

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (true) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

std::byte* address_of(const XLA_FFI_Buffer& buffer) {
  return hvd::address_of(static_cast<std::byte*>(buffer.data));
}

}  // namespace

Job::Job(const XLA_FFI_CallFrame* frame) {
  const auto kind = read_attributes(frame->attrs);
  if (kind < 0 || kind >= kKindCount) {
    throw Error(ErrorCode::kInvalidArgument,
                "the call has an unknown collective: " + std::to_string(kind));
  }
  request_.kind = static_cast<Kind>(kind);
  // The last argument only has to be large; see primitive.py.
  const auto count = static_cast<std::size_t>(frame->args.size - 1);
  keeps_errors_.resize(count, '0');
  const auto errors = static_cast<std::size_t>(std::ranges::count(keeps_errors_, '1'));
  if (static_cast<std::size_t>(frame->rets.size) != count + errors ||
      !names_fit(names_.size(), request_.is_grouped, count)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name_of(request_.kind)) + ": the call has " + std::to_string(count) +
                    " tensors, " + std::to_string(frame->rets.size) + " results and " +
                    std::to_string(names_.size()) + " names");
  }
  const auto result = [frame](std::size_t i) {
    return static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i]);
  };
  std::size_t next_errors = count;
  for (std::size_t i = 0; i < count; ++i) {
    add_tensor(*static_cast<const XLA_FFI_Buffer*>(frame->args.args[i]), *result(i),
               keeps_errors_[i] == '1' ? result(next_errors++) : nullptr);
  }
}

std::int64_t Job::read_attributes(const XLA_FFI_Attrs& attrs) {
  const Attributes attributes(attrs);
  request_.op = static_cast<ReduceOp>(attributes.integer("op"));
  request_.is_grouped = attributes.integer("is_group") != 0;
  request_.root = static_cast<std::int32_t>(attributes.integer("root_rank"));
  request_.prescale = attributes.number("prescale_factor");
  request_.postscale = attributes.number("postscale_factor");
  request_.format = static_cast<LinkFormat>(attributes.integer("link_format"));
  process_set_ = static_cast<int>(attributes.integer("process_set_id"));
  is_zeroed_ = attributes.integer("is_zeroed") != 0;
  names_ = lines_of(attributes.text("names"));
  keeps_errors_ = attributes.text("keeps_errors");
  return attributes.integer("kind");
}

void Job::add_tensor(const XLA_FFI_Buffer& in, const XLA_FFI_Buffer& out,
                     const XLA_FFI_Buffer* errors) {
  Request request = request_;
  const std::optional<Dtype> dtype = find_dtype(kDtypes, in.dtype);
  if (!dtype || in.rank > Request::kMaxDims) {
    throw Error(ErrorCode::kInvalidArgument,
                name_of(request) + " '" + names_.front() + "': a tensor of this dtype, or of " +
                    std::to_string(in.rank) + " dimensions, is not supported");
  }
  request.dtype = *dtype;
  request.dims_count = static_cast<std::int32_t>(in.rank);
  std::copy_n(in.dims, in.rank, request.dims.begin());
  if (is_complex(in.dtype)) make_complex(request);
  requests_.push_back(request);
  tensors_.push_back({.in = address_of(in),
                      .out = collective_of(request_.kind).keeps_shape() ? address_of(out) : nullptr,
                      .errors = errors == nullptr ? nullptr : static_cast<float*>(errors->data)});
  results_.push_back(&out);
}

void Job::place_on(int device, StreamDependencyPtr dependency) {
  for (Tensor& tensor : tensors_) tensor.device = device;
  dependency_ = std::move(dependency);
}

std::vector<Submission> Job::submissions() const {
  return submissions_of(names_, request_.is_grouped, requests_, tensors_, {}, dependency_);
}

void Job::store(const std::vector<Output>& outputs, ResultWriter& writer) const {
  if (collective_of(request_.kind).keeps_shape() && !is_zeroed_) return;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const XLA_FFI_Buffer& result = *results_[i];
    if (is_zeroed_) {
      if (result.data != nullptr) writer.clear(result.data, requests_[i].size_bytes());
      continue;
    }
    std::vector<std::int64_t> expected(result.dims, result.dims + result.rank);
    if (is_complex(result.dtype)) expected.push_back(2);
    check_result(requests_[i], names_[request_.is_grouped ? 0 : i], outputs[i], expected);
    const std::size_t size_bytes = outputs[i].size_bytes(requests_[i].dtype);
    if (size_bytes != 0) writer.copy(result.data, outputs[i], size_bytes);
  }
}

}  // namespace hvd::jax
