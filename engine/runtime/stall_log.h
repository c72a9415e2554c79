// Which ranks hold up a process set, as last reported: finds out what is new. One message for each
// change, not one for each tensor.
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
  // Everything that waits for the same ranks.
  struct Stall {
    std::vector<std::string> titles;
    double longest_s = 0;
  };

  // During a look: an operation has waited for these ranks for so long.
  void note(const Ranks& missing, const std::string& title, double age_s) {
    Stall& stall = seen_[missing];
    stall.titles.push_back(title);
    stall.longest_s = std::max(stall.longest_s, age_s);
  }
  // Ends the look. Returns stalls that are new since the last look; `over`: those that have ended.
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

// What the stall monitor knows of a process set.
struct StallState {
  StallLog log;
  std::int64_t looked_ns = 0;
  std::int64_t blocked_since_ns = 0;  // the bucket's wait that was seen last
  bool is_reported = false;           // that one
  int watched_rank = -1;              // of this host: does it beat?
  std::uint32_t beats_seen = 0;       // of that one
  std::int64_t beat_ns = 0;           // when they changed last
};

}  // namespace hvd
