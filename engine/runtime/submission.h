// What a caller hands to the engine, and what one rank can say about it alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "control/request.h"
#include "runtime/tensor_table.h"

namespace hvd {

// One operation: a tensor, or a group of tensors that succeeds or fails as a whole. The tensors'
// memory stays valid until the handle is done; what the spans and the name refer to is copied.
struct Submission {
  std::string_view name;  // empty: a running number
  std::span<const Request> requests;
  std::span<const Tensor> tensors;           // as many
  std::span<const std::int64_t> splits;      // alltoall: rows for each rank; empty: equal parts
  StreamDependencyPtr dependency = nullptr;  // of tensors on GPUs
};

// What the caller is going to do next, so that no thread is woken in vain.
enum class Intent : int {
  kCompute = 0,  // something else: the background thread runs it
  kWait = 1,     // wait for it right away
  kMore = 2,     // submit more soon: no hurry
};

// Why an operation can never run, as far as one rank can see, in a set of these world ranks.
std::optional<std::string> refusal_of(const Submission& submission,
                                      const std::vector<int>& members);

// The same of a reduction's request, which may be another rank's.
std::optional<std::string> reduction_refusal(const Request& request, int size);

// "0, 2, 5", for messages.
std::string list(const std::vector<int>& ranks);

}  // namespace hvd
