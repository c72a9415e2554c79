// Debug mode: what goes into a reduction and what comes out of it has to be finite, and results
// that all ranks should have are compared. Only in host memory: this CPU cannot look into a GPU's.
//
// A rank whose input is not finite arrives with an objection, which the board gives to all ranks as
// the operation's error. Results are compared by exchanging hashes, in an operation of the engine's
// own that nobody waits for; which results is decided by running numbers, alike on all ranks.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>

#include "core/hash.h"
#include "runtime/engine.h"
#include "runtime/values.h"

namespace hvd {

namespace {

// For ranks that are slower than this one.
constexpr auto kPatience = std::chrono::seconds(2);
constexpr const char* kSource = " (found by HOROVOD_DEBUG_COLLECTIVES)";

// Should all ranks have the same?
bool is_common(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kAllgather;
}

std::string which(const Entry& entry, std::size_t index) {
  if (entry.requests.size() == 1) return "";
  return "in tensor " + std::to_string(index + 1) + " of " + std::to_string(entry.requests.size()) +
         " ";
}

struct Values {
  std::span<const std::byte> bytes;
  std::span<const std::int64_t> shape;
};

std::size_t size_of(const Output& output, Dtype dtype) {
  return std::accumulate(output.shape.begin(), output.shape.end(), size_of(dtype),
                         [](std::size_t size, std::int64_t length) {
                           return size * static_cast<std::size_t>(length);
                         });
}

// What each tensor of the entry has become; not of an alltoall.
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
          {.bytes = {output.bytes.get(), size_of(output, request.dtype)}, .shape = output.shape});
    }
  }
  return results;
}

}  // namespace

// Why this rank cannot take part; empty if it can.
std::string Engine::objection_to(const Entry& entry) const {
  if (!is_reduction(entry.request().kind) || entry.request().memory != Memory::kHost) return "";
  for (std::size_t i = 0; i < entry.requests.size(); ++i) {
    const Request& request = entry.requests[i];
    const std::span bytes(entry.tensors[i].in, request.size_bytes());
    if (const auto index = first_not_finite(bytes, request.dtype)) {
      return peer_name(config_.rank) + " has " + which(entry, i) +
             describe_element(bytes, request.dtype, request.shape(), *index) + kSource;
    }
  }
  return "";
}

// Counts an item that is about to run; whether the ranks shall compare what becomes of it.
bool Engine::is_to_be_compared(ProcessSetContext& context, const BucketItem& item) const {
  const Request& request = context.negotiation.request_of(item);
  if (!is_common(request.kind) || request.memory != Memory::kHost) return false;
  if (++context.common_results % config_.debug_interval != 0) return false;
  return !context.negotiation.has_absent(item) && context.size() > 1;
}

// The error of a result, if there is one. Under mutex_.
std::optional<Error> Engine::examine(ProcessSetContext& context, Entry& entry) {
  if (entry.request().memory != Memory::kHost) return std::nullopt;
  if (!is_reduction(entry.request().kind) && !entry.must_compare) return std::nullopt;
  const std::vector<Values> results = results_of(entry);
  if (std::exchange(entry.must_compare, false)) {
    std::uint64_t hash = 0;
    for (const Values& result : results) {
      hash = hash_bytes(result.bytes.data(), result.bytes.size(), hash);
    }
    compare_later(context, title(context, entry), hash);
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
    return error.of(title(context, entry));
  }
  return std::nullopt;
}

// Not from here: to submit takes the mutex and wants to deliver, which the progress role must not.
void Engine::compare_later(ProcessSetContext& context, const std::string& title,
                           std::uint64_t hash) {
  context.comparing->fetch_add(1);
  const std::shared_ptr<void> ticket(nullptr,
                                     [open = context.comparing](void*) { open->fetch_sub(1); });
  const std::string name = "horovod.debug." + std::to_string(++context.comparisons);
  handles_.open(0, [this, set = context.id, name, title, hash, ticket](const auto& result) {
    if (!result.error) compare(set, name, title, hash, ticket);
  });
  has_landed_.store(true);
  note_unattended();
}

// Tells all ranks of the set the hash of a result, and looks at theirs when they are here.
void Engine::compare(int set, const std::string& name, const std::string& title, std::uint64_t hash,
                     const std::shared_ptr<void>& ticket) {
  const std::vector<int> members = members_of(set);
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
    // A rank that has joined meanwhile says nothing.
    if (result.error || result.outputs.front().shape.front() != std::ssize(members)) return;
    std::vector<std::uint64_t> hashes(members.size());
    std::memcpy(hashes.data(), result.outputs.front().bytes.get(),
                hashes.size() * sizeof hashes.front());
    std::vector<int> others = outliers(hashes);
    if (others.empty()) return;
    for (int& rank : others) rank = members[static_cast<std::size_t>(rank)];
    complain(title, others, members);
  };
  try {
    submit(set, {&submission, 1}, Intent::kCompute, judge);
  } catch (const Error&) {  // the world is over, or the set gone
  }
}

// Before something ends that comparisons need; every rank has the same ones under way, or will.
void Engine::let_comparisons_end() {
  if (!config_.is_debug) return;
  const auto are_open = [this] {
    const std::lock_guard guard(mutex_);
    bool found = false;
    for_each_context(
        [&](const ProcessSetContext& context) { found = found || context.comparing->load() != 0; });
    return found && !is_over_.load();
  };
  const std::int64_t deadline_ns = now_ns() + Nanoseconds(kPatience).count();
  while (are_open() && now_ns() < deadline_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A result that has been handed out cannot be called back, so this is the end for all.
void Engine::complain(const std::string& title, const std::vector<int>& others,
                      const std::vector<int>& members) {
  std::vector<int> usual;
  std::ranges::set_difference(members, others, std::back_inserter(usual));
  std::string who;
  for (const int rank : others) who += (who.empty() ? "" : ", ") + peer_name(rank);
  alarms_.raise({.code = ErrorCode::kMismatch,
                 .rank = others.front(),
                 .text = title + ": " + who + (others.size() == 1 ? " has" : " have") +
                         " another result than ranks " + list(usual) + kSource,
                 .operation = title});
  wake_everyone();
  ring_background();
}

}  // namespace hvd
