// Common parts of the calls of all bindings into the engine.
#pragma once

#include <cstddef>
#include <future>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bindings/engine_port.h"

namespace hvd {

// A framework may give no address for an empty tensor. For the engine a null output means "allocate
// the result". So an empty tensor gets an address that is never used.
template <typename Byte>
Byte* address_of(Byte* data) {
  alignas(64) static std::byte nothing[64];
  return data == nullptr ? nothing : data;
}

// The engine's dtype of a framework's; none for one that the engine does not know.
template <typename Table, typename Type>
std::optional<Dtype> find_dtype(const Table& dtypes, Type type) {
  for (const auto& [theirs, ours] : dtypes) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

// Whether a call has as many names as submissions_of() needs.
constexpr bool names_fit(std::size_t names, bool is_group, std::size_t tensors) {
  return is_group ? names == 1 || names == 1 + tensors : names == tensors;
}

// The tensors of a call as one group, or as an operation each. `names`: the group's, and where they
// are known its tensors'; else one for each tensor. The result refers to the arguments.
template <typename Names>
std::vector<Submission> submissions_of(const Names& names, bool is_group,
                                       std::span<const Request> requests,
                                       std::span<const Tensor> tensors,
                                       std::span<const std::int64_t> splits = {},
                                       const StreamDependencyPtr& dependency = nullptr) {
  const std::size_t count = is_group ? 1 : tensors.size();
  const std::size_t length = is_group ? tensors.size() : 1;
  std::vector<Submission> submissions;
  submissions.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    submissions.push_back({.name = names[i],
                           .requests = requests.subspan(i, length),
                           .tensors = tensors.subspan(i, length),
                           .splits = splits,
                           .member_names = {},
                           .dependency = tensors[i].device == kHostDevice ? nullptr : dependency});
  }
  if (is_group) submissions[0].member_names.assign(std::begin(names) + 1, std::end(names));
  return submissions;
}

// Starts operations and waits until all ranks have run them. No signal interrupts this wait: after
// it XLA may give the buffers to other programs.
inline EnginePort::Result run_to_end(EnginePort& port, int set,
                                     std::span<const Submission> submissions) {
  std::promise<EnginePort::Result> ended;
  port.start(set, submissions,
             [&ended](EnginePort::Result result) { ended.set_value(std::move(result)); });
  return ended.get_future().get();
}

}  // namespace hvd
