#include "runtime/engine.h"

#include <algorithm>
#include <set>
#include <utility>

namespace hvd {

namespace {

TracePlace trace_place(const World& world, const std::vector<WatchedProcess>& processes) {
  TracePlace place{.rank = world.config.rank,
                   .local = {},
                   .pids = {},
                   .rank_names = world.config.peer_names,
                   .log = world.config.log};
  for (int rank = 0; rank < world.config.size; ++rank) {
    if (world.presence.is_local(rank)) place.local.push_back(rank);
  }
  for (const WatchedProcess& process : processes) place.pids[process.rank] = process.pid;
  return place;
}

// Does not own the space: its descriptor is closed at shutdown, after the tracer has stopped.
TraceMemory trace_memory(const std::weak_ptr<SharedSpace>& space, int size) {
  return [space, size](int rank) {
    return space.lock()->map(SpaceLayout{size}.recorder_offset(rank), Recorder::region_bytes());
  };
}

}  // namespace

Engine::Engine(EngineConfig config, std::shared_ptr<SharedSpace> space,
               std::vector<WatchedProcess> processes, Connections connections)
    : world_(std::move(config), *space, std::move(connections.hosts),
             std::move(connections.doorbells)),
      failures_(world_),
      tracer_(world_.config.trace, trace_place(world_, processes),
              trace_memory(space, world_.config.size)),
      results_(lock_, world_.config.generation, connections.world.data_plane != nullptr),
      sets_(world_, failures_, std::move(space), std::move(connections.devices),
            std::move(connections.world)),
      doorbells_(world_, sets_),
      role_(lock_, world_.presence, doorbells_),
      common_{lock_, world_,     failures_, tracer_.recorder(), counters_, results_,
              sets_, doorbells_, role_},
      membership_(common_, tracer_),
      stalls_(common_, [this](const std::string& text,
                              const std::vector<int>& ranks) { tracer_.report(text, ranks); }),
      debug_(common_,
             [this](int set, const Submission& submission, HandleTable::Continuation then) {
               submit(set, {&submission, 1}, Intent::kCompute, std::move(then));
             }),
      submitter_(common_, debug_),
      buckets_(common_, membership_, debug_),
      progress_(common_, membership_, buckets_, stalls_, tracer_),
      delay_(common_, buckets_),
      peers_(common_, membership_, delay_),
      background_(common_, progress_, peers_, delay_, membership_),
      waits_(common_, progress_, peers_, background_, delay_, buckets_) {
  tracer_.recorder().record_now(
      {.kind = EventKind::kWorld, .subject = static_cast<std::uint32_t>(world_.config.generation)});
  membership_.watch(std::move(processes), connections.news);
  tracer_.start();
  background_.start();  // last: nothing throws after it
}

Engine::~Engine() { shutdown(); }

void Engine::throw_if_forked() const {
  if (!is_abandoned_) return;
  throw Error(ErrorCode::kAborted, "this process was forked from rank " +
                                       std::to_string(world_.config.rank) +
                                       "; Horovod goes on in the parent only");
}

void Engine::add_process_set(int set, std::vector<int> members, SetLinks links) {
  if (set <= 0 || set >= kMaxProcessSets) {
    throw Error(ErrorCode::kInvalidArgument, "at most " + std::to_string(kMaxProcessSets - 1) +
                                                 " process sets may exist at one time");
  }
  const std::lock_guard guard(lock_.mutex);
  sets_.add(set, std::move(members), std::move(links));
}

int Engine::pair_set(int peer) const {
  const int rank = world_.config.rank;
  if (peer < 0 || peer >= world_.config.size || peer == rank) {
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(rank) + " cannot exchange messages with rank " +
                    std::to_string(peer) + " in a world of " + std::to_string(world_.config.size));
  }
  return sets_.layout().pair_set(std::min(rank, peer), std::max(rank, peer));
}

int Engine::add_pair(int peer, SetLinks links) {
  const int set = pair_set(peer);
  const int rank = world_.config.rank;
  const std::lock_guard guard(lock_.mutex);
  if (!sets_.is_registered(set))
    sets_.add(set, {std::min(rank, peer), std::max(rank, peer)}, std::move(links));
  return set;
}

bool Engine::is_awaited(int set, std::string_view name) {
  const std::lock_guard guard(lock_.mutex);
  if (results_.error()) throw *results_.error();
  ProcessSetContext& context = sets_.context_of(set, [] { return "is_awaited"; });
  if (context.relay == nullptr) {
    const SharedLock lock = context.negotiation.lock();
    return context.negotiation.is_awaited(key_of(name));
  }
  if (context.relay->is_awaited(key_of(name))) return true;
  // Other hosts cannot ring: a thread must listen to them.
  if (context.relay->listen()) {
    doorbells_.wake_holder();
    doorbells_.ring_background();
  }
  return false;
}

void Engine::remove_process_set(int set) {
  while (!role_.take(true)) {
    if (role_.is_closed()) return;
  }
  {
    ProcessSets::Removed removed;
    {
      const std::lock_guard guard(lock_.mutex);
      removed = sets_.remove(set);
      if (removed.context != nullptr) {
        buckets_.fail(*removed.context,
                      Error(ErrorCode::kAborted, "the process set has been removed"));
      }
    }
    if (removed.context != nullptr) removed.context->leave_devices(!results_.is_over());
  }
  waits_.release_role();
}

void Engine::discard_process_set(int set) {
  const std::lock_guard guard(lock_.mutex);
  sets_.discard(set);
}

std::vector<int> Engine::members_of(int set) {
  const std::lock_guard guard(lock_.mutex);
  return sets_.members_of(set);
}

std::vector<int> Engine::missing_ranks(HandleId handle) {
  std::set<int> missing;
  const std::lock_guard guard(lock_.mutex);
  sets_.for_each([&](ProcessSetContext& context) {
    for (const Entry* entry : context.tensors.in_flight()) {
      if (entry->handle != handle) continue;
      const SharedLock lock = context.negotiation.lock();
      for (const int rank : context.negotiation.missing_ranks(entry->ref))
        missing.insert(context.world_rank(rank));
    }
  });
  return {missing.begin(), missing.end()};
}

std::string Engine::title_of(HandleId handle) {
  std::string title;
  const std::lock_guard guard(lock_.mutex);
  sets_.for_each([&](ProcessSetContext& context) {
    for (const Entry* entry : context.tensors.in_flight()) {
      if (entry->handle == handle) title = context.title_of(*entry);
    }
  });
  return title;
}

int Engine::pending_on(int set) {
  debug_.let_comparisons_end();
  const std::lock_guard guard(lock_.mutex);
  const ProcessSetContext* context = sets_.find(set);
  return context == nullptr ? 0 : context->pending.load();
}

int Engine::pending_count() {
  const std::lock_guard guard(lock_.mutex);
  return sets_.pending_count();
}

void Engine::tune(const Tuning& tuning) {
  throw_if_forked();
  if (world_.config.rank != 0) throw Error(ErrorCode::kInvalidArgument, "only rank 0 can tune");
  check_tuning(tuning.bucket);
  const std::lock_guard guard(lock_.mutex);
  if (results_.error()) throw *results_.error();
  NegotiationTable& negotiation = sets_.find(0)->negotiation;
  const SharedLock lock = negotiation.lock();
  negotiation.tune(tuning);
}

HandleId Engine::submit(int set, std::span<const Submission> submissions, Intent intent,
                        HandleTable::Continuation then) {
  throw_if_forked();
  const bool is_continued = static_cast<bool>(then);
  const Submitted submitted = submitter_.submit(set, submissions, intent, std::move(then));
  background_.wake_after(submitted, intent);
  if (is_continued) results_.deliver();  // what could not be submitted
  return submitted.handle;
}

void Engine::continue_with(HandleId handle, HandleTable::Continuation then) {
  results_.continue_with(handle, std::move(then));
  results_.deliver();
  doorbells_.ring_background();
}

bool Engine::contains(HandleId handle) { return !is_abandoned_ && results_.contains(handle); }

bool Engine::poll(HandleId handle) {
  throw_if_forked();
  return waits_.poll(handle);
}

bool Engine::wait(HandleId handle, Nanoseconds limit) {
  throw_if_forked();
  return waits_.wait(handle, limit);
}

bool Engine::confirm(Nanoseconds limit) {
  throw_if_forked();
  return !sets_.has_open_gpus() || waits_.confirm(limit);
}

void Engine::shutdown() {
  if (is_abandoned_ || is_shut_down_.exchange(true)) return;
  debug_.let_comparisons_end();
  role_.close();
  background_.join();
  tracer_.end_traces();  // while other hosts are heard
  membership_.stop_watching();
  std::unique_lock lock(lock_.mutex);
  const Error error(ErrorCode::kAborted,
                    "Horovod has been shut down on rank " + std::to_string(world_.config.rank));
  const bool was_healthy = !results_.error().has_value();
  results_.end(error);
  role_.take_for_good(lock);
  tracer_.recorder().record_now({.kind = EventKind::kLeft});
  lock.unlock();
  if (was_healthy) tracer_.want_last_file();
  tracer_.stop();
  lock.lock();
  sets_.close_space();  // a program that keeps this engine for a handle keeps no descriptor
  lock.unlock();
  if (was_healthy) {
    sets_.leave_devices();
  } else {
    sets_.abort_devices();
  }
  progress_.fail_everything(error);
  if (was_healthy) world_.alarms.note_departure(world_.config.rank);
  membership_.leave(Liveness::kLeft);
  sets_.disconnect();
  results_.deliver();
}

void Engine::abandon() {
  is_abandoned_ = true;
  background_.abandon();
  tracer_.abandon();
  // Only descriptors: as long as this process held them, other ranks would not see the parent die.
  membership_.abandon();
  sets_.close_copies();
}

}  // namespace hvd
