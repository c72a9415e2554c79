// Finds tensors that some ranks do not submit, and buckets that do not move. After the stall time
// there is one message for each change, with the missing ranks and what they are doing. After the
// shutdown time the world ends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/common_parts.h"

namespace hvd {

class StallMonitor : private CommonParts {
 public:
  // Logs a warning with what these ranks are doing. Never blocks.
  using Report = std::function<void(const std::string& text, const std::vector<int>& ranks)>;

  StallMonitor(const CommonParts& common, Report report);

  // By the holder of the progress role, while the world is not over.
  void check(std::int64_t now);

 private:
  bool is_behind_another_set(const ProcessSetContext& context) const;
  int awaited(const ProcessSetContext& context) const;
  void check_bucket(ProcessSetContext& context, std::int64_t now);
  void check_entries(ProcessSetContext& context, std::int64_t now);
  void check_entry(ProcessSetContext& context, Entry& entry, std::int64_t now, bool is_look);
  void check_leader(ProcessSetContext& context, Entry& entry, std::int64_t now);
  void end_look(ProcessSetContext& context);
  std::vector<int> missing_at(ProcessSetContext& context, Entry& entry);
  bool is_silent(ProcessSetContext& context, int rank, std::int64_t now);
  bool may_be_to_blame(ProcessSetContext& context, std::int64_t now, double limit_s);
  bool must_end(double age_s) const;
  bool is_reporter(const ProcessSetContext& context, const std::vector<int>& missing) const;
  std::string text_of(const std::string& what, const std::vector<int>& missing, double age_s) const;
  void report(const ProcessSetContext& context, const std::vector<int>& missing,
              const StallLog::Stall& stall);
  void end_world(const std::string& text, const std::vector<int>& ranks,
                 const std::string& operation);

  const Report report_;
};

}  // namespace hvd
