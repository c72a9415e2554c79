// How the holder of the progress role waits for other ranks: it spins while every rank has a core,
// and sleeps otherwise.
//
// Before a thread sleeps on a peer it rings the peer's doorbell, unless one of the peer's threads
// is awake: a rank is woken when it is needed, not when something happened.
//
// With one active process set a thread sleeps on the counter that it needs. With several it
// registers as a listener with every rank that it waits for, and sleeps on its own doorbell. In a
// world that spans hosts it sleeps in poll(2), on the sockets that it needs and on an eventfd that
// ranks of its host write to. Only the holder of the role touches a data or control socket. A
// leader looks at its links only while it has something in flight: a tensor that it has not
// submitted cannot be complete.
#pragma once

#include <poll.h>

#include <cstdint>
#include <vector>

#include "runtime/doorbells.h"
#include "runtime/forming_delay.h"
#include "runtime/membership.h"
#include "runtime/progress_role.h"

namespace hvd {

// Every sleep ends after this long, to look at alarms that a lost wake-up would hide.
inline constexpr Nanoseconds kWaitSlice = std::chrono::milliseconds(100);

// Time left, at most a slice.
Nanoseconds slice_until(std::int64_t deadline_ns);

class PeerWaits {
 public:
  PeerWaits(World& world, const ProcessSets& sets, Doorbells& doorbells, const ProgressRole& role,
            const Membership& membership, FormingDelay& delay);

  // Until something under way can go on. `is_helper`: not the background thread.
  void wait(std::int64_t deadline_ns, bool is_helper);
  // A helper with nothing under way: until something is ready, or its handle is done.
  void wait_for_work(const Pending& pending, std::int64_t deadline_ns);
  // Is it worth spinning for answers of other hosts that last came at `moved_ns`?
  bool may_spin(std::int64_t moved_ns) const;

 private:
  void wait_for_peer(ProcessSetContext& context, std::int64_t deadline_ns, bool is_helper);
  void wait_for_any(std::int64_t deadline_ns, bool is_helper);
  void wait_for_hosts(std::int64_t deadline_ns, bool is_helper);
  bool must_look_up(bool is_helper) const;
  bool can_progress(bool is_helper);
  // What is waited for on this host; brings the deadline forward to the next look at a data plane.
  Doorbells::Waits waits(std::int64_t& deadline_ns) const;
  // Sleeps by `sleep`, which gets the time limit, as a listener of `waits`.
  void sleep_as_listener(const Doorbells::Waits& waits, bool is_helper, Nanoseconds limit,
                         auto&& sleep);
  void ask_for_help() const;
  std::vector<pollfd> polls() const;
  bool spin_until(Nanoseconds limit, auto&& condition) const;

  World& world_;
  Presence& presence_;
  const ProcessSets& sets_;
  Doorbells& doorbells_;
  const ProgressRole& role_;
  const Membership& membership_;
  FormingDelay& delay_;
  const Nanoseconds spin_;
};

}  // namespace hvd
