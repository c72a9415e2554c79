// The engine of one rank: takes submissions, runs collectives, answers waits. It joins its parts,
// each with its own state and its own header, and forwards to them.
//
// A submission goes through the Submitter into the negotiation table of its process set. The thread
// that holds the ProgressRole steps through Progress, which lets the BucketRunner run the buckets.
// Results gets what has become of the operations. Program threads wait in HandleWaits, the
// Background thread makes progress when none waits, and PeerWaits is how either waits for other
// ranks. Membership and StallMonitor find out that other ranks are gone or missing.
//
// Threads. Callers submit, poll and wait from any thread. A caller that waits makes progress
// itself; the background thread does when none waits; the watcher's thread hears of peers that end;
// the tracer thread writes files. One thread at a time holds the progress role: it can stop between
// two steps and leave the rest to the next holder.
//
// Locks. Take them in this order; never take one on the left while holding one on the right.
//   locks of an external data plane (such as Python's) -> EngineLock::mutex -> the lock of a
//   negotiation table, in shared memory -> OutputPool's
// EngineLock::mutex guards the tables (handles, process sets, entries, the error of the world) and
// whether the progress role is taken. What belongs to the holder of the role needs no lock. Beside
// these: the locks of the tracer, of its reports and of its timeline may be taken under the mutex,
// and the lock of News under any of them. Continuations are called without a lock.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/background.h"
#include "runtime/bucket_runner.h"
#include "runtime/connections.h"
#include "runtime/counters.h"
#include "runtime/debug_checks.h"
#include "runtime/doorbells.h"
#include "runtime/engine_config.h"
#include "runtime/engine_lock.h"
#include "runtime/failures.h"
#include "runtime/forming_delay.h"
#include "runtime/handle_waits.h"
#include "runtime/membership.h"
#include "runtime/peer_waits.h"
#include "runtime/process_sets.h"
#include "runtime/progress.h"
#include "runtime/progress_role.h"
#include "runtime/results.h"
#include "runtime/stall_monitor.h"
#include "runtime/submitter.h"
#include "runtime/tracer.h"
#include "runtime/waiting_threads.h"
#include "runtime/watcher.h"
#include "runtime/world.h"

namespace hvd {

class Engine {
 public:
  // Size of the shared space that the ranks of a host need together; little of it is ever touched.
  static std::size_t space_bytes(int size) { return SpaceLayout{size}.bytes(); }

  // `connections`: where the world spans hosts; then `processes` are those of this host. Or where
  // the world has an external data plane.
  Engine(EngineConfig config, std::shared_ptr<SharedSpace> space,
         std::vector<WatchedProcess> processes, Connections connections = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Process sets: set 0 is the world. All ranks of the world add and remove the same sets. They
  // ensure themselves that all have added a set before one uses it, and that no rank uses a set
  // while it is removed. `members`: world ranks, rising.
  // `links`: where the set spans hosts, or the world has an external data plane, and this rank is a
  // member.
  void add_process_set(int set, std::vector<int> members, SetLinks links = {});
  void remove_process_set(int set);
  // After all ranks have removed it, one rank of each host gives its memory back.
  void discard_process_set(int set);
  // World ranks of a set, rising; none for a set that is not registered.
  std::vector<int> members_of(int set);
  // Operations of this rank that are not done: on a set, on all sets.
  int pending_on(int set);
  int pending_count();

  // On rank 0: from the world's next bucket on, all its ranks run buckets in this way. Other
  // process sets keep the configuration, but this process starts theirs in the new time, too.
  // Throws Error for what cannot be.
  void tune(const Tuning& tuning);

  // Starts operations on a process set; one handle for all. Throws Error when the call cannot be
  // right or the world is over; then nothing was submitted. With a continuation the handle is not
  // to be taken: `then` gets the result, from whichever thread makes progress, maybe within this
  // call; that thread holds no lock then, and `then` must not block.
  HandleId submit(int set, std::span<const Submission> submissions, Intent intent,
                  HandleTable::Continuation then = {});
  // Gives a continuation to a handle whose wait was given up.
  void continue_with(HandleId handle, HandleTable::Continuation then);

  bool contains(HandleId handle);
  // True when done. Makes some progress, never blocks for long.
  bool poll(HandleId handle);
  // Waits, at most `limit`; true when done. Makes progress meanwhile.
  bool wait(HandleId handle, Nanoseconds limit);
  // After a wait that was given up: the background thread makes progress.
  void leave_to_background() { doorbells_.ring_background(); }
  // Waits, at most `limit`, until GPUs have finished what is complete here; true when they have.
  // Throws Error when one of them has failed, or the world is over.
  bool confirm(Nanoseconds limit);
  // Result of a done handle, which is closed.
  HandleTable::Result take(HandleId handle) { return results_.take(handle); }

  // Any thread: the program has found that the world cannot go on. Every rank's operations fail
  // with `reason`.
  void end_world(const std::string& reason) { membership_.end_world(reason); }

  // Fails what is pending and tells the peers. May be called again.
  void shutdown();
  // In a child after fork: the threads are gone and the memory is the parent's, so touch nothing.
  void abandon();

  const World& world() const { return world_; }
  WaitingThreads& waiting_threads() { return waiting_threads_; }
  Tracer& tracer() { return tracer_; }
  const Counters& counters() const { return counters_; }
  // The way to GPU memory; null: there is none.
  const std::shared_ptr<GpuAccess>& gpus() const { return sets_.gpus(); }

 private:
  void throw_if_forked() const;

  EngineLock lock_;
  World world_;
  const Failures failures_;
  Tracer tracer_;
  Counters counters_;
  Results results_;
  ProcessSets sets_;
  Doorbells doorbells_;
  ProgressRole role_;
  Membership membership_;
  StallMonitor stalls_;
  DebugChecks debug_;
  Submitter submitter_;
  BucketRunner buckets_;
  Progress progress_;
  FormingDelay delay_;
  PeerWaits peers_;
  Background background_;
  HandleWaits waits_;
  WaitingThreads waiting_threads_;
  std::atomic<bool> is_shut_down_{false};
  bool is_abandoned_ = false;
};

}  // namespace hvd
