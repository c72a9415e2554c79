// How threads of the program wait for handles: a thread that waits makes progress itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/background.h"

namespace hvd {

class HandleWaits {
 public:
  HandleWaits(const World& world, const ProcessSets& sets, Progress& progress, ProgressRole& role,
              PeerWaits& peers, const Background& background, FormingDelay& delay,
              Doorbells& doorbells, Results& results, const BucketRunner& buckets, EngineLock& lock,
              Recorder& recorder, Counters& counters);

  // See Engine.
  bool poll(HandleId handle);
  bool wait(HandleId handle, Nanoseconds limit);
  bool confirm(Nanoseconds limit);
  // Ends a turn in the progress role, rings the background thread if more is to be done, and calls
  // continuations.
  void release_role();

 private:
  void drive_until(const Pending& pending, std::int64_t deadline_ns);
  void await_background(const Pending& pending, std::int64_t deadline_ns);
  void note_wait(std::int64_t begin_ns);

  const World& world_;
  const ProcessSets& sets_;
  Progress& progress_;
  ProgressRole& role_;
  PeerWaits& peers_;
  const Background& background_;
  FormingDelay& delay_;
  Doorbells& doorbells_;
  Results& results_;
  const BucketRunner& buckets_;
  EngineLock& lock_;
  Recorder& recorder_;
  Counters& counters_;
  // Since when a thread waits that looks for signals between its waits; 0: none.
  std::atomic<std::int64_t> blocked_since_ns_{0};
};

}  // namespace hvd
