// Makes a submission: checks it, names and labels the operation, and enters it into the negotiation
// table of its process set.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/common_parts.h"
#include "runtime/debug_checks.h"
#include "runtime/submission.h"

namespace hvd {

struct Submitted {
  HandleId handle = 0;
  ProcessSetContext* context = nullptr;
  bool became_ready = false;  // on all ranks, with this submission
  std::int64_t at_ns = 0;
};

class Submitter : private CommonParts {
 public:
  Submitter(const CommonParts& common, const DebugChecks& debug);

  // See Engine::submit().
  Submitted submit(int set, std::span<const Submission> submissions, Intent intent,
                   HandleTable::Continuation then);

 private:
  Entry& prepare(ProcessSetContext& context, const Submission& submission);
  void label(const ProcessSetContext& context, Entry& entry);
  Entry& entry_of(ProcessSetContext& context, const Submission& submission);
  void refuse_impossible(const ProcessSetContext& context, const Submission& submission) const;
  void refuse_duplicates();
  void arrive_all(Submitted& submitted);
  bool arrive(ProcessSetContext& context, Entry& entry, HandleId handle, std::size_t position,
              std::int64_t now, Recorder::Batch& events);
  void count(const ProcessSetContext& context, const Entry& entry, std::size_t size_bytes,
             std::int64_t now);

  const DebugChecks& debug_;
  std::vector<Entry*> entries_;  // of the submission under way; under the mutex
};

}  // namespace hvd
