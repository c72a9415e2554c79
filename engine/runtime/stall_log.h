// Which ranks hold up a process set, as was last said: finds out what is new. One message for each
// change, not one for each tensor.
#pragma once

#include <algorithm>
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

  // During a look: an operation waits for these ranks since that long.
  void note(const Ranks& missing, const std::string& title, double age_s) {
    Stall& stall = seen_[missing];
    stall.titles.push_back(title);
    stall.longest_s = std::max(stall.longest_s, age_s);
  }
  // Ends the look. Stalls that are new since the last one; and, in `over`, those that are no more.
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

}  // namespace hvd
