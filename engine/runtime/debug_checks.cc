#include "runtime/debug_checks.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "core/hash.h"
#include "core/text.h"

namespace hvd {

namespace {

// The bits of a floating-point format. NaN and infinity have all exponent bits set.
template <typename Bits>
struct Layout {
  Bits exponent;
  Bits fraction;
};

template <typename Bits>
Bits bits_at(std::span<const std::byte> bytes, std::size_t index) {
  Bits bits;
  std::memcpy(&bits, bytes.data() + index * sizeof bits, sizeof bits);
  return bits;
}

template <typename Bits>
std::optional<std::size_t> find(std::span<const std::byte> bytes, Layout<Bits> layout) {
  const std::size_t count = bytes.size() / sizeof(Bits);
  for (std::size_t index = 0; index < count; ++index) {
    if ((bits_at<Bits>(bytes, index) & layout.exponent) == layout.exponent) return index;
  }
  return std::nullopt;
}

template <typename Bits>
std::string name(std::span<const std::byte> bytes, Layout<Bits> layout, std::size_t index) {
  const Bits bits = bits_at<Bits>(bytes, index);
  if ((bits & layout.fraction) != 0) return "nan";
  return (bits & ~(layout.exponent | layout.fraction)) != 0 ? "-inf" : "inf";
}

// Calls `use` with the layout of a floating-point dtype; its default result for others.
auto with_layout(Dtype dtype, auto&& use) {
  switch (dtype) {
    case Dtype::kFloat16:
      return use(Layout<std::uint16_t>{0x7c00, 0x03ff});
    case Dtype::kBfloat16:
      return use(Layout<std::uint16_t>{0x7f80, 0x007f});
    case Dtype::kFloat32:
      return use(Layout<std::uint32_t>{0x7f800000, 0x007fffff});
    case Dtype::kFloat64:
      return use(Layout<std::uint64_t>{0x7ff0000000000000, 0x000fffffffffffff});
    default:
      return decltype(use(Layout<std::uint32_t>{})){};
  }
}

// The time to wait for slower ranks.
constexpr auto kPatience = std::chrono::seconds(2);
constexpr const char* kSource = " (found by HOROVOD_DEBUG_COLLECTIVES)";

// Whether all ranks should have the same result.
bool is_common(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kAllgather;
}

std::string which(const Entry& entry, std::size_t index) {
  if (entry.requests.size() == 1) return "";
  return "in " + place_text(index, entry.requests.size()) + " ";
}

struct Values {
  std::span<const std::byte> bytes;
  std::span<const std::int64_t> shape;
};

// The result of each tensor of the entry. Not for an alltoall.
std::vector<Values> results_of(const Entry& entry) {
  std::vector<Values> results;
  std::size_t allocated = 0;
  for (std::size_t i = 0; i < entry.requests.size(); ++i) {
    const Request& request = entry.requests[i];
    if (const std::byte* out = entry.tensors[i].out) {
      results.push_back({.bytes = {out, request.size_bytes()}, .shape = request.shape()});
    } else {
      const Output& output = entry.outputs[allocated++];
      results.push_back(
          {.bytes = {output.bytes.get(), output.size_bytes(request.dtype)}, .shape = output.shape});
    }
  }
  return results;
}

}  // namespace

std::optional<std::size_t> first_not_finite(std::span<const std::byte> bytes, Dtype dtype) {
  return with_layout(dtype, [&](auto layout) { return find(bytes, layout); });
}

std::string describe_element(std::span<const std::byte> bytes, Dtype dtype,
                             std::span<const std::int64_t> shape, std::size_t index) {
  std::string position;
  std::size_t rest = index;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    const auto length = static_cast<std::size_t>(shape[dim]);
    position = std::to_string(rest % length) + (position.empty() ? "" : ", ") + position;
    rest /= length;
  }
  return with_layout(dtype, [&](auto layout) { return name(bytes, layout, index); }) + " at [" +
         position + "]";
}

std::vector<int> outliers(std::span<const std::uint64_t> hashes) {
  const auto votes = [&](std::uint64_t hash) { return std::ranges::count(hashes, hash); };
  const auto usual = std::ranges::max_element(
      hashes, [&](std::uint64_t a, std::uint64_t b) { return votes(a) < votes(b); });
  std::vector<int> others;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != *usual) others.push_back(static_cast<int>(rank));
  }
  return others;
}

DebugChecks::DebugChecks(const CommonParts& common, Submit submit)
    : CommonParts(common), submit_(std::move(submit)) {}

std::string DebugChecks::objection_to(const Entry& entry) const {
  if (!is_reduction(entry.request().kind) || entry.request().memory != Memory::kHost) return "";
  for (std::size_t i = 0; i < entry.requests.size(); ++i) {
    const Request& request = entry.requests[i];
    const std::span bytes(entry.tensors[i].in, request.size_bytes());
    if (const auto index = first_not_finite(bytes, request.dtype)) {
      return world_.peer_name(world_.config.rank) + " has " + which(entry, i) +
             describe_element(bytes, request.dtype, request.shape(), *index) + kSource;
    }
  }
  return "";
}

bool DebugChecks::must_compare(ProcessSetContext& context, const BucketItem& item) const {
  const Request& request = context.negotiation.request_of(item);
  if (!is_common(request.kind) || request.memory != Memory::kHost) return false;
  if (++context.debug.common_results % world_.config.debug_interval != 0) return false;
  return !context.negotiation.has_absent(item) && context.size() > 1;
}

std::optional<Error> DebugChecks::examine(ProcessSetContext& context, Entry& entry) {
  if (entry.request().memory != Memory::kHost) return std::nullopt;
  if (!is_reduction(entry.request().kind) && !entry.must_compare) return std::nullopt;
  const std::vector<Values> results = results_of(entry);
  if (std::exchange(entry.must_compare, false)) {
    std::uint64_t hash = 0;
    for (const Values& result : results) {
      hash = hash_bytes(result.bytes.data(), result.bytes.size(), hash);
    }
    compare_later(context, context.title_of(entry), hash);
  }
  if (!is_reduction(entry.request().kind)) return std::nullopt;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Dtype dtype = entry.requests[i].dtype;
    const auto index = first_not_finite(results[i].bytes, dtype);
    if (!index) continue;
    const Error error(ErrorCode::kMismatch,
                      "all ranks gave finite numbers, but the result has " + which(entry, i) +
                          describe_element(results[i].bytes, dtype, results[i].shape, *index) +
                          kSource);
    return error.of(context.title_of(entry));
  }
  return std::nullopt;
}

// As a continuation: a submission takes the mutex, which is held here.
void DebugChecks::compare_later(ProcessSetContext& context, const std::string& title,
                                std::uint64_t hash) {
  open_->fetch_add(1);
  const std::shared_ptr<void> ticket(nullptr, [open = open_](void*) { open->fetch_sub(1); });
  const std::string name = "horovod.debug." + std::to_string(++context.debug.comparisons);
  results_.open(0, [this, set = context.id, name, title, hash, ticket](const auto& result) {
    if (!result.error) compare(set, name, title, hash, ticket);
  });
}

// Sends the hash of a result to all ranks of the set, and checks their hashes when they arrive.
void DebugChecks::compare(int set, const std::string& name, const std::string& title,
                          std::uint64_t hash, const std::shared_ptr<void>& ticket) {
  std::vector<int> members;
  {
    const std::lock_guard guard(lock_.mutex);
    members = sets_.members_of(set);
  }
  const auto given = std::make_shared<std::vector<std::uint64_t>>(members.size(), hash);
  Request request;
  request.kind = Kind::kAlltoall;
  request.dtype = Dtype::kInt64;
  request.dims_count = 1;
  request.dims[0] = static_cast<std::int64_t>(members.size());
  const Tensor tensor{.in = reinterpret_cast<const std::byte*>(given->data()), .out = nullptr};
  const Submission submission{
      .name = name, .requests = {&request, 1}, .tensors = {&tensor, 1}, .splits = {}};
  const auto judge = [this, given, members, title, ticket](const HandleTable::Result& result) {
    // A rank that has joined meanwhile sends nothing.
    if (result.error || result.outputs.front().shape.front() != std::ssize(members)) return;
    std::vector<std::uint64_t> hashes(members.size());
    std::memcpy(hashes.data(), result.outputs.front().bytes.get(),
                hashes.size() * sizeof hashes.front());
    std::vector<int> others = outliers(hashes);
    if (others.empty()) return;
    for (int& rank : others) rank = members[static_cast<std::size_t>(rank)];
    end_world(title, others, members);
  };
  try {
    submit_(set, submission, judge);
  } catch (const Error&) {  // the world is over, or the set has been removed
  }
}

void DebugChecks::let_comparisons_end() const {
  const std::int64_t deadline_ns = now_ns() + Nanoseconds(kPatience).count();
  while (open_->load() != 0 && !results_.is_over() && now_ns() < deadline_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The program already has the wrong result, so the world ends.
void DebugChecks::end_world(const std::string& title, const std::vector<int>& others,
                            const std::vector<int>& members) {
  std::vector<int> usual;
  std::ranges::set_difference(members, others, std::back_inserter(usual));
  world_.alarms.raise({.code = ErrorCode::kMismatch,
                       .rank = others.front(),
                       .text = title + ": " + world_.peer_names(others) +
                               (others.size() == 1 ? " has" : " have") +
                               " another result than ranks " + list(usual) + kSource,
                       .operation = title});
  doorbells_.wake_everyone();
  doorbells_.ring_background();
}

}  // namespace hvd
