#include "control/request.h"

#include <bit>

#include "core/hash.h"
#include "core/text.h"

namespace hvd {

namespace {

constexpr std::string_view kNumber = " number ";
constexpr std::string_view kOfGroup = " of group ";

std::string sent(const Request& request, const std::string& what) {
  return "rank " + std::to_string(request.rank) + " sent " + what;
}

std::string disagree(const std::string& title, const Request& first, const std::string& of_first,
                     const Request& other, const std::string& of_other, const std::string& rule) {
  return title + ": " + sent(other, of_other) + ", " + sent(first, of_first) + "; " + rule;
}

std::string shape_and_dtype(const Request& request) {
  return shape_text(request.shape()) + " " + name_of(request.dtype);
}

std::string factors(const Request& request) {
  return "prescale " + std::to_string(request.prescale) + " and postscale " +
         std::to_string(request.postscale);
}

bool same_shape(const Request& first, const Request& other, int from) {
  if (first.dims_count != other.dims_count) return false;
  for (int i = from; i < first.dims_count; ++i) {
    if (first.dims[i] != other.dims[i]) return false;
  }
  return true;
}

std::optional<std::string> shape_mismatch(const Request& first, const Request& other) {
  const bool is_free = rows_may_differ(first.kind);
  if (same_shape(first, other, is_free ? 1 : 0)) return std::nullopt;
  return disagree("Mismatched " + std::string(upper_name_of(first.kind)) + " tensor shapes", first,
                  shape_and_dtype(first), other, shape_and_dtype(other),
                  is_free ? "all dimensions but the first must match on all ranks"
                          : "shapes must match on all ranks");
}

std::optional<std::string> reduction_mismatch(const Request& first, const Request& other) {
  if (first.op != other.op) {
    return disagree("Mismatched reduction operation", first, name_of(first.op), other,
                    name_of(other.op), "op must match on all ranks");
  }
  if (first.prescale != other.prescale || first.postscale != other.postscale) {
    return disagree("Mismatched prescale and/or postscale factors", first, factors(first), other,
                    factors(other), "factors must match on all ranks");
  }
  if (first.format != other.format) {
    return disagree("Mismatched compression", first, name_of(first.format), other,
                    name_of(other.format),
                    "compression, HOROVOD_LINK_COMPRESSION, its EXACT and its MIN_ELEMENTS, and "
                    "HOROVOD_AUTOTUNE_LINK_COMPRESSION must match on all ranks");
  }
  return std::nullopt;
}

}  // namespace

std::size_t Request::element_count() const {
  std::size_t count = 1;
  for (const std::int64_t dim : shape()) count *= static_cast<std::size_t>(dim);
  return count;
}

std::size_t Request::row_count() const {
  std::size_t count = 1;
  for (int i = 1; i < dims_count; ++i) count *= static_cast<std::size_t>(dims[i]);
  return count;
}

std::optional<std::int64_t> bytes_of(std::span<const std::int64_t> dims, Dtype dtype) {
  auto bytes = static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t dim : dims) {
    if (dim < 0 || dim > kMaxTensorBytes) return std::nullopt;
    if (__builtin_mul_overflow(bytes, dim, &bytes) || bytes > kMaxTensorBytes) return std::nullopt;
  }
  return bytes;
}

std::string name_of(const Request& request) {
  return (request.is_grouped ? "grouped_" : "") + std::string(name_of(request.kind));
}

std::string numbered_name(std::string_view title, std::uint64_t number, std::string_view group) {
  std::string name(title);
  name.append(kNumber).append(std::to_string(number)).append(kOfGroup).append(group);
  return name;
}

bool is_numbered_name(std::string_view name) {
  const std::size_t number = name.find(kNumber);
  return number != name.npos && name.find(kOfGroup, number) != name.npos;
}

static std::uint64_t signature_of(const Request& request, std::uint64_t seed) {
  const std::uint64_t head =
      static_cast<std::uint64_t>(request.kind) | static_cast<std::uint64_t>(request.dtype) << 8 |
      static_cast<std::uint64_t>(request.op) << 16 |
      static_cast<std::uint64_t>(request.dims_count) << 24 |
      static_cast<std::uint64_t>(request.memory) << 30 |
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(request.root)) << 32;
  std::uint64_t state = hash_word(head, seed);
  state = hash_word(std::bit_cast<std::uint64_t>(request.prescale), state);
  state = hash_word(std::bit_cast<std::uint64_t>(request.postscale), state);
  state = hash_word(static_cast<std::uint64_t>(request.format), state);
  const int from = rows_may_differ(request.kind) && request.dims_count > 0 ? 1 : 0;
  for (int i = from; i < request.dims_count; ++i) {
    state = hash_word(static_cast<std::uint64_t>(request.dims[static_cast<std::size_t>(i)]), state);
  }
  return state;
}

std::uint64_t signature_of(std::span<const Request> requests) {
  std::uint64_t signature = 0;
  for (const Request& request : requests) signature = signature_of(request, signature);
  return signature;
}

std::optional<std::string> mismatch(const Request& first, const Request& other) {
  if (first.kind != other.kind) {
    return disagree("Mismatched operations", first, upper_name_of(first.kind), other,
                    upper_name_of(other.kind),
                    "one name or number means one operation on all ranks");
  }
  if (!collective_of(first.kind).has_tensors()) return std::nullopt;
  if (first.memory != other.memory) {
    return disagree(
        "Mismatched " + std::string(upper_name_of(first.kind)) + " CPU/GPU device selection", first,
        name_of(first.memory), other, name_of(other.memory),
        "a tensor must be in the same kind of memory on all ranks");
  }
  if (first.dtype != other.dtype) {
    return disagree("Mismatched data types", first, shape_and_dtype(first), other,
                    shape_and_dtype(other), "dtypes must match on all ranks");
  }
  if (auto text = shape_mismatch(first, other)) return text;
  if (is_reduction(first.kind)) return reduction_mismatch(first, other);
  if (collective_of(first.kind).has_root && first.root != other.root) {
    return disagree("Mismatched " + std::string(upper_name_of(first.kind)) + " root ranks", first,
                    "root rank " + std::to_string(first.root), other,
                    "root rank " + std::to_string(other.root), "root must match on all ranks");
  }
  return std::nullopt;
}

std::string group_mismatch(int first_rank, std::size_t first_count, int other_rank,
                           std::size_t other_count) {
  return "Mismatched group sizes: rank " + std::to_string(other_rank) + " sent " +
         std::to_string(other_count) + " tensors, rank " + std::to_string(first_rank) + " sent " +
         std::to_string(first_count) + "; groups must have the same tensors on all ranks";
}

std::optional<std::string> scalar_refusal(const Request& request) {
  const Collective& collective = collective_of(request.kind);
  if (collective.scalars != Scalars::kRefused || request.dims_count > 0) return std::nullopt;
  return std::string(collective.name) + " does not support scalar tensors: it " +
         collective.row_rule + ", so reshape the tensor to [1]";
}

std::optional<std::string> scalar_failure(const Request& request) {
  const Collective& collective = collective_of(request.kind);
  if (collective.scalars != Scalars::kFail || request.dims_count > 0) return std::nullopt;
  return "rank " + std::to_string(request.rank) + " sent a rank-zero tensor (0 dimensions); " +
         collective.name + " " + collective.row_rule + ", so reshape it to [1]";
}

}  // namespace hvd
