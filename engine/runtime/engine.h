// The engine of one rank: takes submissions, runs collectives, answers waits.
//
// Threads. Callers submit, poll and wait from any thread. A caller that waits makes progress
// itself; a background thread makes progress when nobody waits; one more thread watches for peers
// that end. Whoever runs collectives holds the progress role: one thread at a time, and it can stop
// between two steps and leave the rest to the next holder.
//
// Locks. mutex_ guards the tables and the fatal error. Order: mutex_, then the board's lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/host_backend.h"
#include "control/board.h"
#include "core/log.h"
#include "runtime/handle_table.h"
#include "runtime/tensor_table.h"
#include "runtime/watcher.h"
#include "trace/recorder.h"
#include "transport/peers.h"
#include "transport/region.h"

namespace hvd {

struct EngineConfig {
  int rank = 0;
  int size = 1;
  int generation = 0;    // of the world in this process; keeps handles of different worlds apart
  int usable_cores = 1;  // that the ranks of this host may use together
  std::size_t fusion_threshold_bytes = 128UL << 20;
  std::uint32_t cache_capacity = 1024;
  double cycle_time_s = 0.0;  // 0: the engine decides
  bool stall_check = true;
  double stall_check_time_s = 60.0;
  double stall_shutdown_time_s = 0.0;  // 0: never
  LogConfig log;
  std::vector<std::string> peer_names;  // by rank: "rank 1 (pid 4711 on localhost)"

  bool has_spare_cores() const { return usable_cores > size; }
};

// One operation on one tensor. `in` and `out` stay valid until the handle is done.
struct Submission {
  std::string_view name;
  Request request;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  // null for an allgather: the engine allocates
};

// What the caller is going to do next, so that nobody is woken in vain.
enum class Intent : int {
  kCompute = 0,  // something else: the background thread shall run it
  kWait = 1,     // wait for it right away
  kMore = 2,     // submit more soon: no hurry
};

class Engine {
 public:
  // Bytes of shared memory that the ranks of a host need together.
  static std::size_t region_bytes(int size);

  Engine(EngineConfig config, std::shared_ptr<Region> region,
         std::vector<WatchedProcess> processes);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Starts operations; one handle for all. Throws Error when the call cannot be right or the world
  // is over; then nothing was submitted.
  HandleId submit(std::span<const Submission> submissions, Intent intent);

  bool contains(HandleId handle);
  // True when done. Makes some progress, never blocks for long.
  bool poll(HandleId handle);
  // Waits, at most `limit`; true when done. Makes progress meanwhile.
  bool wait(HandleId handle, Nanoseconds limit);
  // After a wait that was given up: somebody else shall make progress.
  void leave_to_background();
  // Result of a done handle, which is closed.
  HandleTable::Result take(HandleId handle);

  // Fails what is pending and tells the peers. May be called again.
  void shutdown();
  // For bindings whose threads must not be inside a wait when their runtime ends: between these two
  // calls a thread counts as waiting. let_waits_end() returns when none is, or after `limit`.
  void enter_wait() { waiting_threads_.fetch_add(1); }
  void leave_wait() { waiting_threads_.fetch_sub(1); }
  void let_waits_end(Nanoseconds limit);
  // In a child after fork: the threads are gone and the memory is the parent's, so touch nothing.
  void abandon();

  bool has_spare_cores() const { return config_.has_spare_cores(); }
  std::vector<Event> events() const { return recorder_.snapshot(); }

 private:
  enum class Step { kProgressed, kBlocked, kIdle };
  // Of the background thread: when it looks again by itself.
  enum class Mood : int {
    kAsleep,   // never: it must be rung
    kNapping,  // when the stall check is due
    kAlert,    // within the linger time
    kUrgent    // now
  };

  // Submission, under mutex_.
  Entry& prepare(const Submission& submission);
  void refuse_impossible(const Submission& submission) const;
  void refuse_duplicates(std::span<Entry* const> entries);
  bool arrive_all(std::span<Entry* const> entries, HandleId handle);
  bool arrive(Entry& entry, HandleId handle, std::size_t position, std::int64_t now);
  void wake_after_submit(bool became_ready, Intent intent);
  void throw_if_over() const;
  void throw_if_forked() const;

  // Holder of the progress role.
  Step step(bool may_form);
  Step run_or_form(bool may_form);
  void begin_bucket();
  void resolve(const BucketItem& item, std::int64_t now);
  void end_bucket();
  void finish(Entry& entry, const std::optional<Error>& error, std::int64_t now);
  void handle_alarm();
  bool is_over_for(int departed) const;
  bool fail_if_lost();
  void check_holder(int holder, Nanoseconds waited) const;
  void fail_everything(const Error& error);
  void check_stalls();
  void check_stalled_bucket(std::int64_t age_ns);
  void check_stalled_entry(Entry& entry, std::int64_t age_ns);
  void note_blocked(const PeerWait& wait);

  // Waiting.
  bool take_role(bool as_helper);
  void release_role();
  void drive_until(const Pending& pending, std::int64_t deadline_ns);
  void drive_in_background();
  bool may_form_in_background();
  void wait_for_peer(const PeerWait& wait, std::int64_t deadline_ns, bool is_helper);
  void wait_for_work(const Pending& pending, std::int64_t deadline_ns);
  Pending pending(HandleId handle);
  bool spin_until(Nanoseconds limit, auto&& condition) const;
  void kick_sleeper();

  void run_background();
  Nanoseconds background_nap(bool had_role, bool was_rung);
  Nanoseconds idle_nap();
  bool has_enough_ready() const;
  void ring_background();
  void on_peer_death(int rank);
  void wake_everyone();
  std::string peer_name(int rank) const;
  std::string loss_text(int rank) const;
  Error cause() const;

  const EngineConfig config_;
  const std::shared_ptr<Region> region_;
  Board board_;
  Peers peers_;
  HostBackend backend_;
  Recorder recorder_;
  const Nanoseconds spin_;
  const Nanoseconds linger_;

  std::mutex mutex_;
  std::condition_variable changed_;  // a handle is done, or the role is free
  HandleTable handles_;
  TensorTable tensors_;
  std::optional<Error> fatal_;
  std::atomic<bool> is_over_{false};  // fatal_ is set: what was begun is never touched again
  bool role_taken_ = false;
  std::vector<Entry*> submitted_;
  std::vector<std::uint64_t> auto_names_;

  // Owned by the holder of the progress role.
  bool bucket_running_ = false;
  std::uint32_t cursor_ = 0;  // next bucket to run
  std::vector<BucketItem> items_;
  std::vector<Entry*> entries_;
  std::vector<Work> works_;
  PeerWait blocked_on_;
  std::int64_t blocked_since_ns_ = 0;
  bool blocked_reported_ = false;
  std::uint32_t alarms_seen_ = 0;
  bool has_departures_ = false;

  std::atomic<int> waiting_threads_{0};
  std::atomic<int> helpers_waiting_{0};
  std::atomic<std::uint64_t> sleeping_on_{0};  // packed PeerWait of this process' sleeping thread
  std::atomic<bool> stopping_{false};
  std::atomic<Mood> mood_{Mood::kNapping};  // of the background thread
  std::int64_t ready_since_ns_ = 0;         // background thread only
  std::atomic<std::int64_t> last_submit_ns_{0};
  std::atomic<bool> is_shut_down_{false};
  bool is_abandoned_ = false;

  std::thread background_;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace hvd
