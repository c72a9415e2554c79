// Wakes threads. A thread of this process is woken through the word that it sleeps on, a thread of
// another rank through its doorbell.
//
// At most one thread of a process sleeps in the progress role: on a counter of a peer, or on its
// own doorbell. The background thread also sleeps on its doorbell without the role.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/process_sets.h"
#include "runtime/world.h"

namespace hvd {

// When the background thread wakes up by itself.
enum class WakePolicy : int {
  kAsleep,   // never: only a ring wakes it
  kNapping,  // when the stall check is due
  kAlert,    // within the linger time
  kUrgent    // now
};

class Doorbells {
 public:
  using Waits = std::vector<std::pair<ProcessSetContext*, PeerWait>>;

  Doorbells(World& world, const ProcessSets& sets) : presence_(world.presence), sets_(sets) {}

  void ring_background() { presence_.ring_own(presence_.background_doorbell()); }
  // Wakes the thread of this process that sleeps in the progress role. Under the engine's mutex.
  void wake_holder();
  // Wakes all sleeping threads of all ranks of this host.
  void wake_everyone();
  // Rings the ranks that are waited for. False when some of them are awake already.
  bool ring(const Waits& waits) const;

  // The doorbell of this rank for the background thread, or a thread that waits for a handle.
  SharedWord& own(bool is_helper) const {
    return is_helper ? presence_.helper_doorbell() : presence_.background_doorbell();
  }
  // Of the holder of the progress role, before and after its sleep.
  void sleep_on(const ProcessSetContext& context, const PeerWait& wait);
  void sleep_on_doorbell(bool is_helper);
  void end_sleep() { sleeping_on_.store(kNothing); }
  // The holder sleeps on a counter of this process set; -1 for none.
  int sleeping_set() const;

  // True when no thread of this process makes progress.
  bool is_left_to_background() const;
  WakePolicy policy() const { return policy_.load(); }
  void set_policy(WakePolicy policy) { policy_.store(policy); }

 private:
  // What the holder sleeps on, packed: a counter of a process set, or a doorbell.
  static constexpr std::uint64_t kNothing = 0;
  static constexpr std::uint64_t kBackgroundDoorbell = ~std::uint64_t{0};

  Presence& presence_;
  const ProcessSets& sets_;
  std::atomic<std::uint64_t> sleeping_on_{kNothing};
  std::atomic<WakePolicy> policy_{WakePolicy::kNapping};
};

}  // namespace hvd
