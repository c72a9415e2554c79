// How the holder of the progress role waits for other ranks: it looks again and again for a while,
// then it sleeps. Between two looks it yields its core, if there are more ranks than cores.
//
// Before a thread sleeps on a peer it rings the peer's doorbell, unless a thread of the peer is
// awake. So a rank is woken when it is needed, not whenever something happens.
//
// With one active process set a thread sleeps on the counter that it needs. With several it
// registers as a listener with every rank that it waits for, and sleeps on its own doorbell. In a
// world that spans hosts it sleeps in poll(2), on the sockets that it needs and on an eventfd that
// ranks of its host write to. Only the holder of the role touches a data or control socket. A
// leader reads its links only while it has operations in flight: a tensor that it has not submitted
// cannot be complete.
#pragma once

#include <poll.h>

#include <cstdint>
#include <vector>

#include "runtime/common_parts.h"
#include "runtime/forming_delay.h"
#include "runtime/membership.h"

namespace hvd {

// The longest sleep. Then the thread checks for alarms, in case a wake-up was lost.
inline constexpr Nanoseconds kWaitSlice = std::chrono::milliseconds(100);

// Time left, at most a slice.
Nanoseconds slice_until(std::int64_t deadline_ns);

class PeerWaits : private CommonParts {
 public:
  PeerWaits(const CommonParts& common, const Membership& membership, FormingDelay& delay);

  // Waits until a bucket under way can go on. `is_helper`: not the background thread.
  void wait(std::int64_t deadline_ns, bool is_helper);
  // For a helper with no bucket under way: waits until something is ready, or its handle is done.
  void wait_for_work(const Pending& pending, std::int64_t deadline_ns);
  // Whether to spin for answers of other hosts. The last one came at `moved_ns`.
  bool may_spin(std::int64_t moved_ns) const;

 private:
  void wait_for_peer(ProcessSetContext& context, std::int64_t deadline_ns, bool is_helper);
  void wait_for_any(std::int64_t deadline_ns, bool is_helper);
  void wait_for_hosts(std::int64_t deadline_ns, bool is_helper);
  bool must_look_up(bool is_helper) const;
  bool can_progress(bool is_helper);
  // All waits for ranks of this host. Makes the deadline earlier if a data plane must be checked
  // before.
  Doorbells::Waits waits(std::int64_t& deadline_ns) const;
  // Sleeps by `sleep`, which gets the time limit, as a listener of `waits`.
  void sleep_as_listener(const Doorbells::Waits& waits, bool is_helper, Nanoseconds limit,
                         auto&& sleep);
  void ask_for_help() const;
  std::vector<pollfd> polls() const;
  bool spin_until(Nanoseconds limit, auto&& condition) const;

  Presence& presence_;
  const Membership& membership_;
  FormingDelay& delay_;
  const bool has_own_core_;
};

}  // namespace hvd
