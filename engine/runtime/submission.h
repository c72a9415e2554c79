// A caller's operation for the engine, and the checks that one rank can make.
#pragma once

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
// memory stays valid until the handle is done; what the spans and the texts refer to is copied.
struct Submission {
  std::string_view name;  // empty: a running number
  // If not empty: the running number is that of the set, whose program calls it `group`. All ranks
  // have the same group, and may call the operation differently.
  std::string_view title = {}, group = {};
  std::span<const Request> requests;
  std::span<const Tensor> tensors;       // one for each request
  std::span<const std::int64_t> splits;  // alltoall: rows for each rank; empty: equal parts
  // Of a group's tensors; empty where they are not known. They say what is sent exactly.
  std::vector<std::string_view> member_names = {};
  StreamDependencyPtr dependency = nullptr;  // of tensors on GPUs
};

// What the caller will do next, so that no thread is woken without need.
enum class Intent : int {
  kCompute = 0,  // something else: the background thread runs it
  kWait = 1,     // wait for it right away
  kMore = 2,     // submit more soon: no hurry
};

// Why an operation can never run in a set of these world ranks, as far as one rank can see.
// `is_engines`: the engine itself moves the data of this set.
std::optional<std::string> refusal_of(const Submission& submission, const std::vector<int>& members,
                                      bool is_engines = true);

// The same for the request of a reduction, which may be another rank's.
std::optional<std::string> reduction_refusal(const Request& request, int size);

// "0, 2, 5", for messages.
std::string list(const std::vector<int>& ranks);

}  // namespace hvd
