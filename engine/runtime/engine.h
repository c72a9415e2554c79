// The engine of one rank: takes submissions, runs collectives, answers waits. It joins its parts
// and forwards to them. Each part has its own state and its own header.
//
// A submission goes through the Submitter into the negotiation table of its process set. The thread
// that holds the ProgressRole calls Progress, which lets the BucketRunner run the buckets.
// HandleTable gets the results. Program threads wait in HandleWaits. The Background thread makes
// progress when no thread waits. Both wait for other ranks in PeerWaits. Membership finds out that
// other ranks are gone, StallMonitor that they do not take part.
//
// Threads. Callers submit, poll and wait from any thread. A caller that waits makes progress
// itself. The background thread makes progress when no caller waits. The watcher's thread learns of
// peers that end. The tracer thread writes files. One thread at a time holds the progress role. It
// can stop between two steps, and the next holder continues.
//
// Locks. Take them in this order; never take one on the left while holding one on the right.
//   locks of an external data plane (such as Python's) -> EngineLock::mutex -> the lock of a
//   negotiation table, in shared memory -> OutputPool's EngineLock::mutex guards the tables
// (handles, process sets, entries, the error of the world) and whether the progress role is taken.
// The state of the holder of the role needs no lock. Other locks: those of the tracer, of its
// reports and of its timeline may be taken under the mutex, and the lock of News under any of them.
// The lock of AwaitedNames may be taken under a table's.
// Continuations are called without a lock.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/background.h"
#include "runtime/bucket_runner.h"
#include "runtime/common_parts.h"
#include "runtime/connections.h"
#include "runtime/debug_checks.h"
#include "runtime/forming_delay.h"
#include "runtime/handle_waits.h"
#include "runtime/membership.h"
#include "runtime/peer_waits.h"
#include "runtime/progress.h"
#include "runtime/stall_monitor.h"
#include "runtime/submitter.h"
#include "runtime/tracer.h"
#include "runtime/watcher.h"
#include "runtime/world.h"

namespace hvd {

class Engine {
 public:
  // Size of the shared space that the ranks of a host need together; little of it is ever touched.
  static std::size_t space_bytes(int size) { return SpaceLayout{size}.bytes(); }

  // `processes`: of the other ranks of this host. `connections`: if the world spans hosts, or has
  // an external data plane.
  Engine(EngineConfig config, std::shared_ptr<SharedSpace> space,
         std::vector<WatchedProcess> processes, Connections connections = {});
  ~Engine();

  // Process sets: set 0 is the world. All ranks of the world add and remove the same sets. The
  // callers must ensure that all ranks have added a set before one uses it, and that no rank uses a
  // set while it is removed. `members`: world ranks, rising. `links`: for members, if the set spans
  // hosts, or the world has an external data plane.
  void add_process_set(int set, std::vector<int> members, SetLinks links = {});
  void remove_process_set(int set);
  // The set of this rank and one other rank, for messages. Its number follows from the two ranks,
  // so it needs no agreement. `links`: if they are on two hosts. Adding it again has no effect.
  int add_pair(int peer, SetLinks links = {});
  // After all ranks have removed it, one rank of each host gives its memory back.
  void discard_process_set(int set);
  // World ranks of a set, rising; none for a set that is not registered.
  std::vector<int> members_of(int set);
  // Whether another rank has submitted `name` to the set, and this rank has not, as far as is known
  // here: of other hosts it is known in a set of two ranks, some time after the first of several
  // calls.
  bool is_awaited(int set, std::string_view name);
  void throw_if_over() { results_.throw_if_over(); }
  // Operations of this rank that are not done, on a set.
  int pending_on(int set);
  // The ranks that have not submitted the operations of a handle, as far as this host knows.
  std::vector<int> missing_ranks(HandleId handle);
  // What an operation of the handle is, for messages; empty if it is done.
  std::string title_of(HandleId handle);
  // Operations of this rank that are not done, on all sets.
  int pending_count();

  // On rank 0: all ranks use this for the world's buckets, from the next one on. Other process sets
  // keep the configuration, but this process uses the new cycle time for them, too. Throws Error
  // for values that are not valid.
  void tune(const Tuning& tuning);

  // Starts operations on a process set, with one handle for all. Throws Error if the call is not
  // valid or the world is over; then nothing was submitted. With a continuation the handle must not
  // be taken: `then` gets the result, from any thread that makes progress, maybe within this call.
  // That thread holds no lock, and `then` must not block.
  HandleId submit(int set, std::span<const Submission> submissions, Intent intent,
                  HandleTable::Continuation then = {});
  // Gives a continuation to a handle after its wait was given up.
  void continue_with(HandleId handle, HandleTable::Continuation then);

  bool contains(HandleId handle);
  // True when done. Makes some progress, never blocks for long.
  bool poll(HandleId handle);
  // Waits, at most `limit`; true when done. Makes progress meanwhile.
  bool wait(HandleId handle, Nanoseconds limit);
  // After a wait that was given up: the background thread makes progress.
  void leave_to_background() { doorbells_.ring_background(); }
  // Waits, at most `limit`, until GPUs have finished the operations that are complete here; true
  // when they have. Throws Error if a GPU has failed, or if the world is over.
  bool confirm(Nanoseconds limit);
  // The result of a handle that is done. Closes the handle.
  HandleTable::Result take(HandleId handle) { return results_.take(handle); }

  // Any thread: the program has found that the world cannot go on. Every rank's operations fail
  // with `reason`.
  void end_world(const std::string& reason) { membership_.end_world(reason); }

  // Fails pending operations and tells the peers. May be called again.
  void shutdown();
  // In a child after fork. The threads are gone and the memory belongs to the parent, so it only
  // closes descriptors.
  void abandon();

  const World& world() const { return world_; }
  WaitingThreads& waiting_threads() { return waiting_threads_; }
  Tracer& tracer() { return tracer_; }
  const Counters& counters() const { return counters_; }
  // The way to GPU memory; null: there is none.
  const std::shared_ptr<GpuAccess>& gpus() const { return sets_.gpus(); }

 private:
  void throw_if_forked() const;
  int pair_set(int peer) const;

  EngineLock lock_;
  World world_;
  const Failures failures_;
  Tracer tracer_;
  Counters counters_;
  HandleTable results_;
  ProcessSets sets_;
  Doorbells doorbells_;
  ProgressRole role_;
  const CommonParts common_;
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
