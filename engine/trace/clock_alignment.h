// The time by which the clock of another host is ahead of this host's clock. It follows from events
// of both hosts, so no message is needed for it.
//
// All ranks run the same buckets. No rank starts a bucket before all ranks have submitted its
// operations. No rank has the result of an allreduce before all ranks have started it. Each such
// pair of events, on two clocks, is a bound on one side of the difference. The tightest bounds of
// both sides make an interval. Bounds get looser with time, since clocks drift.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "trace/events.h"

namespace hvd {

class ClockAlignment {
 public:
  struct Estimate {
    std::int64_t ahead_ns = 0;  // of the other clock
    std::int64_t error_ns = 0;  // at most
  };

  // An event of a rank of this host, or of the other one. `kind`: of the label of a kFused.
  void add(bool is_other, int rank, const Event& event, int kind = -1);
  // None before both sides have a bound.
  std::optional<Estimate> estimate() const;

 private:
  // The known events of one host in a bucket.
  struct Done {
    std::optional<std::int64_t> last_submit_ns;
    std::optional<std::int64_t> first_start_ns;
    std::optional<std::int64_t> last_start_ns;
    std::optional<std::int64_t> first_done_ns;
  };
  struct Bucket {
    Done here, there;
    bool needs_all = false;  // no rank is done before all have started
  };
  struct Bound {
    std::int64_t value_ns = 0;
    std::int64_t time_ns = 0;  // of this host's clock
  };

  void bound(const Bucket& bucket);
  void bound_below(std::int64_t value_ns, std::int64_t time_ns);
  void bound_above(std::int64_t value_ns, std::int64_t time_ns);

  std::map<std::pair<int, std::uint32_t>, Bucket> buckets_;           // by set and number
  std::map<std::pair<int, std::uint32_t>, std::int64_t> submits_[2];  // by rank and label
  std::optional<Bound> low_, high_;
};

}  // namespace hvd
