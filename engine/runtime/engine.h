// The engine of one rank: takes submissions, runs collectives, answers waits.
//
// Threads. Callers submit, poll and wait from any thread. A caller that waits makes progress
// itself; a background thread makes progress when nobody waits; one more thread watches for peers
// that end. Whoever runs collectives holds the progress role: one thread at a time, and it can stop
// between two steps and leave the rest to the next holder.
//
// Process sets. Each has a Lane of its own; one holder of the progress role runs them all in turn,
// and none waits for another.
//
// Locks. mutex_ guards the tables and the fatal error. Order: mutex_, then a board's lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "control/alarms.h"
#include "core/bad_message.h"
#include "core/log.h"
#include "runtime/counters.h"
#include "runtime/handle_table.h"
#include "runtime/news.h"
#include "runtime/process_set_context.h"
#include "runtime/submission.h"
#include "runtime/tracer.h"
#include "runtime/watcher.h"
#include "transport/presence.h"
#include "transport/shared_space.h"

namespace hvd {

struct EngineConfig {
  int rank = 0;
  int size = 1;
  int local_size = 1;       // ranks on this host
  int generation = 0;       // of the world in this process; keeps handles of different worlds apart
  int usable_cores = 1;     // that the ranks of this host may use together
  Tuning tuning;            // to begin with
  bool fuse_groups = true;  // with other tensors
  std::uint32_t cache_capacity = 1024;
  bool stall_check = true;
  double stall_check_time_s = 60.0;
  double stall_shutdown_time_s = 0.0;  // 0: never
  bool is_debug = false;               // look into tensors; alike on all ranks
  std::uint32_t debug_interval = 100;  // compare every so many results
  LogConfig log;
  TraceConfig trace;
  std::vector<std::string> peer_names;  // by rank: "rank 1 (pid 4711 on localhost)"
  std::vector<std::string> peer_hosts;  // by rank: "localhost"

  bool has_spare_cores() const { return usable_cores > local_size; }
};

// Process sets that may exist at one time, the world included.
inline constexpr int kMaxProcessSets = 1024;

class Engine {
 public:
  // Size of the shared space that the ranks of a host need together; little of it is ever touched.
  static std::size_t space_bytes(int size);

  // `connections`: where the world spans hosts; then `processes` are those of this host. Or where
  // it has a carrier.
  Engine(EngineConfig config, std::shared_ptr<SharedSpace> space,
         std::vector<WatchedProcess> processes, Connections connections = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Process sets: set 0 is the world. All ranks of the world add and remove the same sets, and see
  // to it themselves that all have added a set before one uses it, and that nobody uses a set while
  // it is removed. `members`: world ranks, rising.
  // `links`: where the set spans hosts, or the world has a carrier, and this rank is a member.
  void add_process_set(int set, std::vector<int> members, SetLinks links = {});
  void remove_process_set(int set);
  // After all ranks have removed it, one of each host gives its memory back.
  void discard_process_set(int set);
  // World ranks of a set, rising; none for a set that is not registered.
  std::vector<int> members_of(int set);
  // Operations of this rank in flight on a set.
  int flights(int set);

  // On rank 0: from the next bucket of the world on, all its ranks run buckets in this way. Other
  // process sets keep to the configuration, but that this process starts theirs in time, too.
  // Throws Error for what cannot be.
  void tune(const Tuning& tuning);

  // Starts operations on a process set; one handle for all. Throws Error when the call cannot be
  // right or the world is over; then nothing was submitted. With a continuation the handle is not
  // to be taken: `then` gets the result, from whichever thread makes progress, maybe within this
  // call; it holds no lock and must not block.
  HandleId submit(int set, std::span<const Submission> submissions, Intent intent,
                  HandleTable::Continuation then = {});
  // The same for a handle that somebody waited for and gave up.
  void continue_with(HandleId handle, HandleTable::Continuation then);

  bool contains(HandleId handle);
  // True when done. Makes some progress, never blocks for long.
  bool poll(HandleId handle);
  // Waits, at most `limit`; true when done. Makes progress meanwhile.
  bool wait(HandleId handle, Nanoseconds limit);
  // After a wait that was given up: somebody else shall make progress.
  void leave_to_background();
  // Waits, at most `limit`, until GPUs have finished what is complete here; true when they have.
  // Throws Error when one of them has failed, or the world is over.
  bool confirm(Nanoseconds limit);
  // Result of a done handle, which is closed.
  HandleTable::Result take(HandleId handle);

  // Any thread: the program has found that the world cannot go on. Every rank's operations fail
  // with `reason`.
  void end_world(const std::string& reason);

  // Fails what is pending and tells the peers. May be called again.
  void shutdown();
  // For bindings whose threads must not be inside a wait when their runtime ends: between these two
  // calls a thread counts as waiting. let_waits_end() returns when none is, or after `limit`.
  void enter_wait() { waiting_threads_.fetch_add(1); }
  void leave_wait() { waiting_threads_.fetch_sub(1); }
  void let_waits_end(Nanoseconds limit);
  // In a child after fork: the threads are gone and the memory is the parent's, so touch nothing.
  void abandon();

  int rank() const { return config_.rank; }
  // Is this the first rank of its host?
  bool leads_host() const;
  bool has_spare_cores() const { return config_.has_spare_cores(); }
  Tracer& tracer() { return *tracer_; }
  const Counters& counters() const { return counters_; }
  // Operations of this rank in flight, on all sets.
  int flights_in_all();
  // The way to GPU memory; null: there is none.
  const std::shared_ptr<GpuAccess>& gpus() const { return devices_.gpus; }

 private:
  enum class Step { kProgressed, kBlocked, kIdle };
  // Of the background thread: when it looks again by itself.
  enum class WakePolicy : int {
    kAsleep,   // never: it must be rung
    kNapping,  // when the stall check is due
    kAlert,    // within the linger time
    kUrgent    // now
  };

  // Of the shared space: the world's words, before one part for each process set.
  static std::size_t words_bytes(int size);
  // Where the process sets' parts begin, behind the words and every rank's flight recorder.
  static std::size_t sets_offset(int size);
  std::unique_ptr<Tracer> make_tracer(const std::vector<WatchedProcess>& processes);

  // Submission, under mutex_.
  ProcessSetContext& context_for(int set, std::span<const Submission> submissions);
  ProcessSetContext& open_context(int set);
  HostMap hosts_of(const std::vector<int>& members) const;
  void label(const ProcessSetContext& context, Entry& entry);
  Entry& prepare(ProcessSetContext& context, const Submission& submission);
  std::string running_name(ProcessSetContext& context, const Request& request) const;
  void refuse_impossible(const ProcessSetContext& context, const Submission& submission) const;
  void refuse_duplicates(std::span<Entry* const> entries);
  bool arrive_all(ProcessSetContext& context, std::span<Entry* const> entries, HandleId handle);
  void count_arrival(const ProcessSetContext& context, const Entry& entry, std::size_t size_bytes,
                     std::int64_t now);
  bool arrive(ProcessSetContext& context, Entry& entry, HandleId handle, std::size_t position,
              std::int64_t now, Recorder::Batch& events);
  void wake_after_submit(const ProcessSetContext& context, bool became_ready, Intent intent);
  void throw_if_over(std::span<const Submission> submissions) const;
  void throw_if_forked() const;

  // Debug mode.
  std::string objection_to(const Entry& entry) const;
  bool is_to_be_compared(ProcessSetContext& context, const BucketItem& item) const;
  std::optional<Error> examine(ProcessSetContext& context, Entry& entry);
  void compare_later(ProcessSetContext& context, const std::string& title, std::uint64_t hash);
  void compare(int set, const std::string& name, const std::string& title, std::uint64_t hash,
               const std::shared_ptr<void>& ticket);
  void let_comparisons_end();
  void complain(const std::string& title, const std::vector<int>& others,
                const std::vector<int>& members);

  // Holder of the progress role.
  Step step(bool may_form);
  Step step_contexts(bool may_form);
  void watch_devices();
  Step run_or_form(ProcessSetContext& context, bool may_form);
  bool relay(ProcessSetContext& context);
  bool pump(ProcessSetContext& context);
  bool advance(ProcessSetContext& context, PeerWait& blocked);
  void begin_bucket(ProcessSetContext& context);
  void resolve(ProcessSetContext& context, const BucketItem& item, std::int64_t now,
               Recorder::Batch& events);
  void resolve_absent(ProcessSetContext& context, const BucketItem& item);
  Output make_output(const Tensor& tensor, const Request& request, std::int64_t rows);
  void add_works(ProcessSetContext& context, Entry& entry, const BucketItem& item);
  Work* add_work(ProcessSetContext& context, const Request& request, const BucketItem& item);
  void end_bucket(ProcessSetContext& context);
  void finish(ProcessSetContext& context, Entry& entry, const std::optional<Error>& error,
              std::int64_t now);
  void handle_alarm();
  void start_watching(std::vector<WatchedProcess> processes, const std::vector<LeaderLink>& links);
  void tell_other_hosts();
  bool hear_link(std::size_t index);
  void hear(int leader, const NewsItem& item);
  void connect_tracer();
  [[noreturn]] void lose(const ProcessSetContext& context, const LinkLost& lost);
  void lose_host(int leader, const std::string& reason);
  Error alarm_about(const BadMessage& bad, int rank);
  [[noreturn]] void refuse(const BadMessage& bad, int rank);
  void refuse_irreducible(const ProcessSetContext& context, const Request& request);
  bool speaks_for_host() const;
  bool is_over_for(const ProcessSetContext& context, int departed) const;
  bool fail_if_lost();
  bool may_still_answer(int departed);
  void check_holder(int holder, Nanoseconds waited) const;
  void give_up(const Error& error);
  void abort_devices();
  void fail_everything(const Error& error);
  void fail_context(ProcessSetContext& context, const Error& error);
  void complete(HandleId handle, std::size_t position, const std::optional<Error>& error,
                std::vector<Output> outputs);
  void check_stalls();
  void check_stalled_bucket(ProcessSetContext& context, std::int64_t age_ns);
  void tell_who_arrived(ProcessSetContext& context, Entry& entry);
  void check_leader(ProcessSetContext& context, Entry& entry, double age_s, bool must_end);
  void check_stalled_entries(ProcessSetContext& context, std::int64_t now);
  void check_stalled_entry(ProcessSetContext& context, Entry& entry, std::int64_t age_ns,
                           bool is_look);
  std::vector<int> missing_at(ProcessSetContext& context, Entry& entry);
  bool speaks_for(const ProcessSetContext& context, const std::vector<int>& missing) const;
  std::string names_of(const std::vector<int>& ranks) const;
  std::string stall_text(const std::string& what, const std::vector<int>& missing,
                         double age_s) const;
  void report(const ProcessSetContext& context, const std::vector<int>& missing,
              const StallLog::Stall& stall);
  void note_blocked(ProcessSetContext& context, const PeerWait& wait, std::int64_t resumed_ns);
  void end_wait(ProcessSetContext& context, std::int64_t now);

  // Waiting.
  bool take_role(bool as_helper);
  // True when something is ready that nobody has begun, or may become so with nobody to see it.
  bool release_role();
  // Calls the continuations of what is done, outside of the progress role. False for none.
  bool deliver();
  void drive_until(const Pending& pending, std::int64_t deadline_ns);
  void note_blocked(std::int64_t begin_ns);
  void await_background(const Pending& pending, std::int64_t deadline_ns);
  void note_unattended();
  // True when it left off for the sake of continuations, with more to do perhaps.
  bool drive_in_background();
  bool may_form_in_background();
  void wait_for_peer(ProcessSetContext& context, std::int64_t deadline_ns, bool is_helper);
  void wait_for_any(std::int64_t deadline_ns, bool is_helper);
  void wait_for_hosts(std::int64_t deadline_ns, bool is_helper);
  void ask_for_help() const;
  bool is_brief() const;
  bool is_silent(ProcessSetContext& context, int rank) const;
  bool is_due_from_afar(double age_s, double limit_s) const;
  bool may_be_to_blame(ProcessSetContext& context, double age_s, double limit_s) const;
  std::vector<pollfd> polls() const;
  bool spans_hosts() const { return !hosts_.empty(); }
  bool has_active_context() const;
  void disconnect();
  bool ring_all(const std::vector<std::pair<ProcessSetContext*, PeerWait>>& waits) const;
  SharedWord& doorbell(bool is_helper) const;
  void say_asleep(bool is_helper);
  void wait_for_work(const Pending& pending, std::int64_t deadline_ns);
  bool must_look_up(bool is_helper) const;
  int sleeping_set() const;
  Pending pending(HandleId handle);
  bool spin_until(Nanoseconds limit, auto&& condition) const;
  void wake_sleeper();  // under mutex_

  void run_background();
  Nanoseconds background_nap(bool had_role, bool was_rung);
  Nanoseconds idle_nap();
  bool is_left_to_background() const;
  bool missed_something();
  Nanoseconds linger() const;
  Nanoseconds lingering() const;
  void ring_background();
  void on_peer_death(int rank);
  void wake_everyone();
  std::string peer_name(int rank) const;
  std::string title(const ProcessSetContext& context, const Entry& entry) const;
  std::string loss_text(int rank) const;
  Error error_of(const Alarm& alarm) const;
  Error loss_of(int rank) const;
  Error cause() const;

  // Lanes that exist; under mutex_ or in the progress role.
  template <typename Use>
  void for_each_context(Use&& use) const {
    const std::size_t count = context_count_.load(std::memory_order_acquire);
    for (std::size_t set = 0; set < count; ++set) {
      if (ProcessSetContext* context = contexts_[set].load(std::memory_order_acquire))
        use(*context);
    }
  }
  ProcessSetContext* only_active_context() const;
  bool has_ready() const;
  bool is_enough(std::size_t ready_bytes) const;
  bool can_progress(bool may_form) const;

  struct RegisteredSet {
    std::vector<int> members;
    SetLinks links;  // until its lane is opened
  };

  const EngineConfig config_;
  // A carrier's calls may take a lock of its language, and a signal may come in the middle of one:
  // then the background thread alone makes progress.
  const bool is_carried_;
  const std::vector<std::vector<int>> hosts_;  // world ranks of each; empty: there is one host
  std::shared_ptr<SharedSpace> space_;         // null after shutdown
  const DevicePlane devices_;
  const std::shared_ptr<Region> region_;  // presence and alarms
  Presence presence_;
  Alarms alarms_;
  const std::shared_ptr<OutputPool> outputs_ = std::make_shared<OutputPool>();
  const Nanoseconds spin_;
  const std::unique_ptr<Tracer> tracer_;
  Recorder& recorder_;

  std::mutex mutex_;
  std::condition_variable changed_;  // a handle is done, or the role is free
  HandleTable handles_;
  std::map<int, RegisteredSet> sets_;
  std::atomic<bool> has_landed_{false};     // handles_ has
  std::atomic<bool> is_unattended_{false};  // handles are under way that nobody will wait for
  std::optional<Error> fatal_;
  Counters counters_;
  std::atomic<std::int64_t> last_done_ns_{0};      // when a bucket ended
  std::atomic<std::int64_t> blocked_since_ns_{0};  // a thread that waits with interruptions; or 0
  std::atomic<bool> is_over_{false};  // fatal_ is set: what was begun is never touched again
  bool role_taken_ = false;
  std::vector<Entry*> submitted_;
  // By process set; made under mutex_, dropped under mutex_ by the holder of the progress role.
  std::vector<std::atomic<ProcessSetContext*>> contexts_{kMaxProcessSets};
  std::atomic<std::size_t> context_count_{0};  // sets above have none

  std::unique_ptr<News> news_;  // of a leader of the world, where it spans hosts

  // Owned by the holder of the progress role.
  std::uint32_t alarms_seen_ = 0;
  std::vector<std::int64_t> departures_ns_;  // when each rank was seen to have left; 0: not yet

  std::atomic<bool> has_device_work_{false};    // that is complete here and that GPUs are still at
  std::atomic<bool> is_device_watched_{false};  // by the background thread

  std::atomic<bool> has_departures_{false};  // ranks have left the world
  std::atomic<int> waiting_threads_{0};
  std::atomic<int> helpers_waiting_{0};
  std::atomic<int> onlookers_{0};  // threads that wait and leave progress to the background thread
  std::atomic<std::uint64_t> sleeping_on_{0};  // what the thread with the role waits for, packed
  std::atomic<bool> stopping_{false};
  std::atomic<WakePolicy> wake_policy_{WakePolicy::kNapping};  // of the background thread
  std::int64_t ready_since_ns_ = 0;                            // background thread only
  std::atomic<std::int64_t> last_submit_ns_{0};
  std::atomic<std::uint32_t> cycle_time_us_;  // of the last bucket of the world; 0: as it sees fit
  std::atomic<bool> is_shut_down_{false};
  bool is_abandoned_ = false;

  std::thread background_;
  std::atomic<std::thread::id> background_id_{};  // a continuation of its own may wait, too
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace hvd
