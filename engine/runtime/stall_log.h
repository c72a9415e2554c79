// The ranks that a process set waits for, as last reported. It finds the changes, so that there is
// one message for each change and not one for each tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hvd {

class StallLog {
 public:
  using Ranks = std::vector<int>;
  // All operations that wait for the same ranks.
  struct Stall {
    std::vector<std::string> titles;
    double longest_s = 0;
  };

  // During a check: an operation has waited for these ranks for so long.
  void note(const Ranks& missing, const std::string& title, double age_s) {
    Stall& stall = seen_[missing];
    stall.titles.push_back(title);
    stall.longest_s = std::max(stall.longest_s, age_s);
  }
  // Ends the check. Returns stalls that are new since the last check. `over`: stalls that have
  // ended.
  std::map<Ranks, Stall> end_look(std::map<Ranks, Stall>& over) {
    std::map<Ranks, Stall> begun;
    for (const auto& [missing, stall] : seen_) {
      if (!known_.contains(missing)) begun.emplace(missing, stall);
    }
    over.clear();
    for (const auto& [missing, stall] : known_) {
      if (!seen_.contains(missing)) over.emplace(missing, stall);
    }
    known_ = std::move(seen_);
    seen_.clear();
    return begun;
  }
  bool is_empty() const { return known_.empty() && seen_.empty(); }

 private:
  std::map<Ranks, Stall> seen_;
  std::map<Ranks, Stall> known_;
};

// The stall monitor's state of a process set.
struct StallState {
  StallLog log;
  std::int64_t looked_ns = 0;
  std::int64_t blocked_since_ns = 0;  // the last wait of a bucket that was seen
  bool is_reported = false;           // whether that wait was reported
  int watched_rank = -1;              // the rank of this host with these beats
  std::uint32_t beats_seen = 0;
  std::int64_t beat_ns = 0;  // when the beats changed last
};

}  // namespace hvd
