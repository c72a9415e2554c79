// Debug mode: the input and the result of a reduction must be finite, and results that should be
// equal on all ranks are compared. Only in host memory: this CPU cannot read a GPU's.
//
// A rank whose input is not finite arrives with an objection, which the negotiation table gives to
// all ranks as the operation's error. Results are compared by exchanging hashes, in an operation of
// the engine's own. Running numbers, equal on all ranks, decide which results are compared.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/doorbells.h"
#include "runtime/engine_lock.h"
#include "runtime/process_sets.h"
#include "runtime/results.h"
#include "runtime/submission.h"

namespace hvd {

class DebugChecks {
 public:
  // Submits an operation of the engine's own. Called without the mutex; may throw Error.
  using Submit = std::function<void(int set, const Submission&, HandleTable::Continuation)>;

  DebugChecks(World& world, ProcessSets& sets, Results& results, Doorbells& doorbells,
              EngineLock& lock, Submit submit);

  // Why this rank cannot take part with these tensors; empty if it can.
  std::string objection_to(const Entry& entry) const;
  // Counts an item that is about to run. True when the ranks must compare its result.
  bool must_compare(ProcessSetContext& context, const BucketItem& item) const;
  // The error of a result, if there is one. Starts its comparison. Under the mutex.
  std::optional<Error> examine(ProcessSetContext& context, Entry& entry);
  // Blocks until the comparisons under way have ended, for two seconds at most. To be called before
  // something ends that they need; every rank has the same ones under way, or will have.
  void let_comparisons_end() const;

 private:
  void compare_later(ProcessSetContext& context, const std::string& title, std::uint64_t hash);
  void compare(int set, const std::string& name, const std::string& title, std::uint64_t hash,
               const std::shared_ptr<void>& ticket);
  void end_world(const std::string& title, const std::vector<int>& others,
                 const std::vector<int>& members);

  World& world_;
  ProcessSets& sets_;
  Results& results_;
  Doorbells& doorbells_;
  EngineLock& lock_;
  const Submit submit_;
  // Comparisons under way; a continuation of one may outlive this object.
  const std::shared_ptr<std::atomic<int>> open_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace hvd
