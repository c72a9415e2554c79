// Which error a lost rank, an alarm or a bad message stands for. Any thread, no lock.
#pragma once

#include <string>

#include "core/bad_message.h"
#include "core/error.h"
#include "runtime/world.h"

namespace hvd {

class Failures {
 public:
  explicit Failures(World& world) : world_(world) {}

  // Why the world is over, as far as this rank knows.
  Error cause() const;
  // That `rank` has ended. A rank that shut down or gave up is not blamed: it may be on its way to
  // another world.
  Error loss_of(int rank) const;
  std::string loss_text(int rank) const;
  Error error_of(const Alarm& alarm) const;

  // Raises the alarm; its error.
  Error raise(const Alarm& alarm) const;
  // Raises an alarm about what `rank` has sent: nothing that it sends can be used. -1: unknown.
  Error raise(const BadMessage& bad, int rank) const;
  // Of a connection to `rank`.
  Error raise_link_loss(int rank, const std::string& reason) const;

  // `holder` has held a negotiation table for `waited`; normally that takes less than a
  // microsecond. Throws when it died inside, or has stopped for too long.
  void check_holder(int holder, Nanoseconds waited) const;

 private:
  World& world_;
};

}  // namespace hvd
