// Debug mode: the input and the result of a reduction must be finite, and results that should be
// equal on all ranks are compared. Only in host memory: this CPU cannot read a GPU's.
//
// If an input is not finite, its rank arrives with an objection. The negotiation table gives it to
// all ranks as the operation's error. To compare results, the ranks exchange hashes, in an
// operation of the engine's own. Running numbers, equal on all ranks, decide which results are
// compared.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "runtime/common_parts.h"
#include "runtime/submission.h"

namespace hvd {

// Checks on the values of tensors; pure.
//
// The first element that is NaN or infinite; none in integers.
std::optional<std::size_t> first_not_finite(std::span<const std::byte> bytes, Dtype dtype);

// "nan at [0, 17]", for element `index` of a tensor of this shape.
std::string describe_element(std::span<const std::byte> bytes, Dtype dtype,
                             std::span<const std::int64_t> shape, std::size_t index);

// `hashes`: of each rank's result. The ranks that differ from the majority, or from the first rank
// if there is no majority, as positions in `hashes`. Empty if all are equal.
std::vector<int> outliers(std::span<const std::uint64_t> hashes);

class DebugChecks : private CommonParts {
 public:
  // Submits an operation of the engine's own. Called without the mutex; may throw Error.
  using Submit = std::function<void(int set, const Submission&, HandleTable::Continuation)>;

  DebugChecks(const CommonParts& common, Submit submit);

  // Why this rank cannot take part with these tensors; empty if it can.
  std::string objection_to(const Entry& entry) const;
  // Counts an item that is about to run. True when the ranks must compare its result.
  bool must_compare(ProcessSetContext& context, const BucketItem& item) const;
  // The error of a result, if there is one. Starts its comparison. Under the mutex.
  std::optional<Error> examine(ProcessSetContext& context, Entry& entry);
  // Blocks until the comparisons under way have ended, for two seconds at most. Call it before
  // ending something that they need. Every rank has the same comparisons under way, or will have.
  void let_comparisons_end() const;

 private:
  void compare_later(ProcessSetContext& context, const std::string& title, std::uint64_t hash);
  void compare(int set, const std::string& name, const std::string& title, std::uint64_t hash,
               const std::shared_ptr<void>& ticket);
  void end_world(const std::string& title, const std::vector<int>& others,
                 const std::vector<int>& members);

  const Submit submit_;
  // Comparisons under way; a continuation of one may outlive this object.
  const std::shared_ptr<std::atomic<int>> open_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace hvd
