// The errors for lost ranks, alarms and bad messages. Any thread, no lock.
#pragma once

#include <string>

#include "core/error.h"
#include "runtime/world.h"

namespace hvd {

class Failures {
 public:
  explicit Failures(World& world) : world_(world) {}

  // Why the world is over, as far as this rank knows.
  Error cause() const;
  // The error that `rank` has ended. If it shut down or gave up, it is not in Subject::ranks: it
  // may be about to join another world.
  Error loss_of(int rank) const;
  std::string loss_text(int rank) const;
  Error error_of(const Alarm& alarm) const;

  // Raises the alarm, and returns its error.
  Error raise(const Alarm& alarm) const;
  // The same for a bad message from `rank`; -1: unknown. No later message of that rank can be used.
  Error raise(const BadMessage& bad, int rank) const;
  // The same for a lost connection to `rank`.
  Error raise_link_loss(int rank, const std::string& reason) const;

  // `holder` has held a negotiation table for `waited`. Normally that takes less than a
  // microsecond. Throws if the holder has died, or has been stopped for too long.
  void check_holder(int holder, Nanoseconds waited) const;

 private:
  World& world_;
};

}  // namespace hvd
