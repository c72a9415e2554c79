#include "bindings/tensorflow/xla_call.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "bindings/submissions.h"

namespace hvd::tensorflow {

namespace {

// Reads numbers, each followed by a space, and lines.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  template <typename T>
  T number() {
    T value{};
    const char* const end = rest_.data() + rest_.size();
    const auto [stop, code] = std::from_chars(rest_.data(), end, value);
    if (code != std::errc() || stop == end) {
      throw Error(ErrorCode::kInvalidArgument, "a compiled call has '" +
                                                   std::string(rest_.substr(0, 20)) +
                                                   "' where a number and a space are expected");
    }
    rest_ = std::string_view(stop + 1, static_cast<std::size_t>(end - stop) - 1);
    return value;
  }
  int integer() { return number<int>(); }

  std::int64_t length() {
    const auto value = number<std::int64_t>();
    if (value >= 0) return value;
    throw Error(ErrorCode::kInvalidArgument,
                "a compiled call has a dimension of " + std::to_string(value));
  }

  // One of the first `count` values of `Value`.
  template <typename Value>
  Value one_of(int count, const char* what) {
    const int value = integer();
    if (value >= 0 && value < count) return static_cast<Value>(value);
    throw Error(ErrorCode::kInvalidArgument, std::string("a compiled call has ") + what + " " +
                                                 std::to_string(value) + ", expected 0 to " +
                                                 std::to_string(count - 1));
  }

  // The number of entries that follow. Each has at least a digit and a space.
  std::size_t size() {
    const auto value = number<std::uint32_t>();
    if (value <= rest_.size() / 2) return value;
    throw Error(ErrorCode::kInvalidArgument,
                "a compiled call announces " + std::to_string(value) + " entries, but has fewer");
  }

  std::vector<std::string_view> lines() {
    std::vector<std::string_view> lines;
    while (!rest_.empty()) {
      const std::size_t end = rest_.find('\n');
      lines.push_back(rest_.substr(0, end));
      rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    }
    return lines;
  }

 private:
  std::string_view rest_;
};

Request read_tensor(Reader& reader, Request request) {
  request.dtype = reader.one_of<Dtype>(kDtypeCount, "dtype");
  request.dims_count = reader.integer();
  if (request.dims_count < 0 || request.dims_count > Request::kMaxDims) {
    throw Error(ErrorCode::kInvalidArgument,
                name_of(request) + ": a tensor of " + std::to_string(request.dims_count) +
                    " dimensions; at most " + std::to_string(Request::kMaxDims) + " are supported");
  }
  for (int i = 0; i < request.dims_count; ++i) {
    request.dims[static_cast<std::size_t>(i)] = reader.length();
  }
  return request;
}

}  // namespace

std::int32_t world_number(EnginePort& port, std::string_view text) {
  Reader reader(text);
  const auto what = reader.one_of<WorldNumber>(kWorldNumberCount, "number");
  const int set = reader.integer();
  if (const std::optional<int> value = port.number(what, set)) return *value;
  throw Error(ErrorCode::kInvalidArgument, no_answer_about(set));
}

XlaCall::XlaCall(std::string_view text) {
  Reader reader(text);
  request_.kind = reader.one_of<Kind>(kKindCount, "kind");
  request_.op = reader.one_of<ReduceOp>(kReduceOpCount, "op");
  request_.is_grouped = reader.integer() != 0;
  request_.root = reader.integer();
  request_.prescale = reader.number<double>();
  request_.postscale = reader.number<double>();
  request_.format = reader.one_of<LinkFormat>(kLinkFormatCount, "link format");
  process_set_ = reader.integer();
  set_size_ = reader.integer();
  splits_.resize(reader.size());
  for (std::int64_t& split : splits_) split = reader.number<std::int64_t>();
  const std::size_t count = reader.size();
  for (std::size_t i = 0; i < count; ++i) {
    requests_.push_back(read_tensor(reader, request_));
    rows_.push_back(reader.number<std::int64_t>());
  }
  names_ = reader.lines();
  if (names_fit(names_.size(), request_.is_grouped, count)) return;
  throw Error(ErrorCode::kInvalidArgument, name_of(request_) + ": " +
                                               std::to_string(names_.size()) + " names for " +
                                               std::to_string(count) + " tensors");
}

void XlaCall::bind(const void* const* inputs, void* const* outputs) {
  const bool is_in_place = collective_of(request_.kind).keeps_shape();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    tensors_.push_back(
        {.in = address_of(static_cast<const std::byte*>(inputs[i])),
         .out = is_in_place ? address_of(static_cast<std::byte*>(outputs[i])) : nullptr});
  }
  outputs_ = outputs;
}

const void* XlaCall::token() const {
  // Received splits, or the last rank to join.
  const bool has_numbers = request_.kind == Kind::kAlltoall || request_.kind == Kind::kJoin;
  return outputs_[requests_.size() + (has_numbers ? 1 : 0)];
}

void XlaCall::place_on(int device, StreamDependencyPtr dependency) {
  for (Tensor& tensor : tensors_) tensor.device = device;
  dependency_ = std::move(dependency);
}

std::vector<Submission> XlaCall::submissions() const {
  if (!collective_of(request_.kind).has_tensors()) {
    return {{.name = {}, .requests = {&request_, 1}, .tensors = {&nothing_, 1}, .splits = {}}};
  }
  return submissions_of(names_, request_.is_grouped, requests_, tensors_, splits_, dependency_);
}

void XlaCall::store(const std::vector<Output>& outputs, ResultWriter& writer) const {
  if (collective_of(request_.kind).keeps_shape()) return;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool is_tensor = i < requests_.size();
    if (collective_of(request_.kind).has_tensors()) {
      std::vector<std::int64_t> expected = outputs[i].shape;
      expected.front() = is_tensor ? rows_[i] : set_size_;
      const std::size_t name = request_.is_grouped ? 0 : std::min(i, names_.size() - 1);
      check_result(request_, names_[name], outputs[i], expected);
    }
    const std::size_t size_bytes =
        outputs[i].size_bytes(is_tensor ? requests_[i].dtype : Dtype::kInt32);
    if (size_bytes != 0) writer.copy(outputs_[i], outputs[i], size_bytes);
  }
}

}  // namespace hvd::tensorflow
