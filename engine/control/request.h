// The request of a rank, and the comparison of two ranks' requests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/collectives.h"
#include "core/dtype.h"
#include "core/link_format.h"
#include "core/memory.h"
#include "core/reduce_op.h"

namespace hvd {

// Which running number an operation has for a name.
enum class Numbering : std::uint8_t {
  kNone = 0,    // a name of its own
  kOfKind = 1,  // the number among the process set's operations of this kind
  kOfSet = 2,   // the number among all of the set's operations with this numbering
};
inline constexpr int kNumberingCount = 3;

// A rank's request for one tensor. A group is several requests under one name. Trivially copyable:
// it is stored in shared memory.
struct Request {
  static constexpr int kMaxDims = 32;

  Kind kind = Kind::kAllreduce;
  Dtype dtype = Dtype::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool is_grouped = false;  // one of a group
  Numbering numbering = Numbering::kNone;
  Memory memory = Memory::kHost;
  LinkFormat format = LinkFormat::kAsSet;  // of reductions, between hosts
  std::int32_t root = 0;                   // world rank, if the collective has a root
  std::int32_t rank = 0;                   // the rank that asks; world rank
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

// The limit for the bytes of a request, and for its rows together. No address space has more.
inline constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 47;
// Bytes of a tensor with these dimensions. None if a dimension is negative, or if the bytes exceed
// the limit.
std::optional<std::int64_t> bytes_of(std::span<const std::int64_t> dims, Dtype dtype);

// "grouped_allreduce": names, messages.
std::string name_of(const Request& request);
// "all_reduce number 17 of group default": a name that says what the operation is, and where.
std::string numbered_name(std::string_view title, std::uint64_t number, std::string_view group);
bool is_numbered_name(std::string_view name);
// Requests with equal signatures agree: all fields are equal, except `rank`, and except the first
// dimension if rows may differ.
std::uint64_t signature_of(std::span<const Request> requests);

// Why two ranks' requests for one tensor cannot run together; none when they can. The text has both
// ranks, their values and the rule. The caller adds operation and tensor.
std::optional<std::string> mismatch(const Request& first, const Request& other);
// The same for groups with different numbers of tensors.
std::string group_mismatch(int first_rank, std::size_t first_count, int other_rank,
                           std::size_t other_count);

// Why a tensor without dimensions cannot run, if its own rank refuses it.
std::optional<std::string> scalar_refusal(const Request& request);
// The same, if all ranks fail because of it.
std::optional<std::string> scalar_failure(const Request& request);

}  // namespace hvd
