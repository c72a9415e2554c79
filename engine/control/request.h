// What a rank asks for, and how two ranks' requests are compared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/collectives.h"
#include "core/dtype.h"
#include "core/memory.h"
#include "core/reduce_op.h"

namespace hvd {

// What a rank asks for one tensor; a group is several of them under one name. Trivially copyable:
// it lies in shared memory as it is.
struct Request {
  static constexpr int kMaxDims = 32;

  Kind kind = Kind::kAllreduce;
  Dtype dtype = Dtype::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool is_grouped = false;  // one of a group
  bool is_unnamed = false;  // its name is a running number
  Memory memory = Memory::kHost;
  std::int32_t root = 0;  // where there is one; world rank
  std::int32_t rank = 0;  // the rank that asks; world rank
  std::int32_t dims_count = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::array<std::int64_t, kMaxDims> dims{};

  std::span<const std::int64_t> shape() const {
    return {dims.data(), static_cast<std::size_t>(dims_count)};
  }
  std::size_t element_count() const;
  std::size_t size_bytes() const { return element_count() * size_of(dtype); }
  // Elements in one row: the product of all dimensions but the first.
  std::size_t row_count() const;
};

// More than any address space has: what a request may claim, and rows of it may add up to.
inline constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 47;
// Bytes of a tensor of these dimensions, or of rows of it; none where that is more than a tensor
// can have, or a dimension is negative.
std::optional<std::int64_t> bytes_of(std::span<const std::int64_t> dims, Dtype dtype);

// "grouped_allreduce": names, messages.
std::string name_of(const Request& request);
// Equal signatures mean that the requests agree: all is equal but `rank`, and the first dimension
// where rows may differ.
std::uint64_t signature_of(std::span<const Request> requests);

// Why two ranks' requests for one tensor cannot run together; nothing when they can. The text names
// both ranks, what they sent and what must hold; the caller puts operation and tensor in front.
std::optional<std::string> mismatch(const Request& first, const Request& other);
// The same for groups, of which the first rank's has `first_count` tensors.
std::string group_mismatch(int first_rank, std::size_t first_count, int other_rank,
                           std::size_t other_count);

// Why a tensor without dimensions cannot run, where its rank refuses it.
std::optional<std::string> scalar_refusal(const Request& request);
// The same, where all ranks fail whatever the others send.
std::optional<std::string> scalar_failure(const Request& request);

}  // namespace hvd
