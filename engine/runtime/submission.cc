#include "runtime/submission.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/reduce.h"
#include "runtime/link_formats.h"

namespace hvd {

namespace {

std::optional<std::string> root_refusal(const Request& request, const std::vector<int>& members) {
  if (std::ranges::binary_search(members, request.root)) return std::nullopt;
  return "invalid root rank " + std::to_string(request.root) + "; the ranks are " + list(members);
}

// The numbers of received rows are int32 in results.
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

std::string too_many_rows(std::int64_t rows) {
  return "a rank cannot send " + std::to_string(rows) +
         " rows to another one, since received splits are int32; reshape the tensor to longer rows";
}

std::optional<std::string> splits_refusal(const Request& request,
                                          std::span<const std::int64_t> splits, int size) {
  if (auto reason = scalar_refusal(request)) return reason;
  const std::int64_t rows = request.dims[0];
  if (splits.empty()) {
    if (rows / size > kMaxRows) return too_many_rows(rows / size);
    if (rows % size == 0) return std::nullopt;
    return "without splits the first dimension, " + std::to_string(rows) +
           ", must be a multiple of the number of ranks, " + std::to_string(size);
  }
  if (splits.size() != static_cast<std::size_t>(size)) {
    return "splits has " + std::to_string(splits.size()) + " entries; it needs one for each of " +
           std::to_string(size) + " ranks";
  }
  if (std::ranges::any_of(splits, [](std::int64_t split) { return split < 0; })) {
    return "splits must not be negative";
  }
  const std::int64_t most = std::ranges::max(splits);
  if (most > kMaxRows) return too_many_rows(most);
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum <= rows) return std::nullopt;
  return "splits add up to " + std::to_string(sum) + " rows; the tensor has " +
         std::to_string(rows);
}

std::optional<std::string> memory_refusal(const Submission& submission) {
  if (submission.tensors.empty()) return std::nullopt;
  const Memory memory = memory_of(submission.tensors.front().device);
  if (memory == Memory::kCuda && submission.dependency == nullptr) {
    return "the tensor is on a GPU, and the caller has not said when its data is there";
  }
  const auto differs = [&](const Tensor& tensor) { return memory_of(tensor.device) != memory; };
  if (std::ranges::none_of(submission.tensors, differs)) return std::nullopt;
  return "the tensors of a group must be all in host memory or all on GPUs";
}

std::optional<std::string> compression_refusal(Request request, const Tensor& tensor,
                                               bool is_engines) {
  request.memory = memory_of(tensor.device);
  return format_refusal(request, is_engines);
}

}  // namespace

std::optional<std::string> reduction_refusal(const Request& request, int size) {
  const char* reason = unsupported_reason({.dtype = request.dtype,
                                           .op = request.op,
                                           .prescale = request.prescale,
                                           .postscale = request.postscale,
                                           .divisor = size});
  if (reason != nullptr) return reason;
  if (request.op == ReduceOp::kAdasum && !collective_of(request.kind).keeps_shape()) {
    return "Adasum needs whole tensors; use allreduce";
  }
  if (auto refusal = format_refusal(request, true)) return refusal;
  return scalar_refusal(request);
}

std::optional<std::string> refusal_of(const Submission& submission, const std::vector<int>& members,
                                      bool is_engines) {
  const int size = static_cast<int>(members.size());
  for (std::size_t i = 0; i < submission.requests.size(); ++i) {
    const Request& request = submission.requests[i];
    const Collective& collective = collective_of(request.kind);
    std::optional<std::string> reason;
    if (collective.has_root) reason = root_refusal(request, members);
    if (collective.is_reduction) reason = reduction_refusal(request, size);
    if (collective.has_splits()) reason = splits_refusal(request, submission.splits, size);
    if (!reason && may_be_low_bit(request.format)) {
      reason = compression_refusal(request, submission.tensors[i], is_engines);
    }
    if (reason) return reason;
  }
  return memory_refusal(submission);
}

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace hvd
