// Construction, submission, results and the end. Process sets are in process_sets.cc, what runs
// collectives is in progress.cc, what waits in waiting.cc, what looks after lost peers in health.cc
// and after stalled tensors in stalls.cc.
#include "runtime/engine.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "collective/shares.h"
#include "core/quiet_thread.h"

namespace hvd {

namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
// Of who waits for GPUs to finish.
constexpr auto kConfirmInterval = std::chrono::microseconds(100);
// When the background thread starts what is ready while no thread waits for it. With a core to
// spare soon, to overlap with the computation; without one it would only take turns with it, so it
// lets more come together and leaves the work to the thread that will wait.
struct Eagerness {
  Nanoseconds linger;
  std::size_t enough_bytes;  // ready: do not linger
};
constexpr Eagerness kOverlap{.linger = std::chrono::microseconds(50), .enough_bytes = 1UL << 20};
constexpr Eagerness kTakeTurns{.linger = std::chrono::milliseconds(5), .enough_bytes = 64UL << 20};

// To leave it to a thread that waits, one must come.
const Eagerness& eagerness_of(const EngineConfig& config, bool is_unattended) {
  return config.has_spare_cores() || is_unattended ? kOverlap : kTakeTurns;
}

static_assert(kLeastBlockKib * 1024 == kLeastBlockBytes);

void refuse_cut(const AllreduceCut& cut) {
  const std::size_t most =
      std::min<std::size_t>(kMostBlockKib, staging_sizes(1).staging_cell_bytes / 1024);
  if (cut.block_kib >= kLeastBlockKib && cut.block_kib <= most) {
    if (cut.small_kib <= kMostSmallKib && cut.small_between_hosts_kib <= kMostSmallKib) return;
    throw Error(ErrorCode::kInvalidArgument,
                "a small allreduce has at most " + std::to_string(kMostSmallKib) + " KiB, not " +
                    std::to_string(std::max(cut.small_kib, cut.small_between_hosts_kib)));
  }
  throw Error(ErrorCode::kInvalidArgument,
              "a block of an allreduce has " + std::to_string(kLeastBlockKib) + " to " +
                  std::to_string(most) + " KiB, not " + std::to_string(cut.block_kib));
}

// The check runs at the shutdown time too, where that is the shorter one.
EngineConfig completed(EngineConfig config, const std::vector<std::vector<int>>& hosts) {
  refuse_cut(config.tuning.bucket.cut);
  config.local_size = config.size;
  for (const std::vector<int>& host : hosts) {
    const bool is_own = std::ranges::find(host, config.rank) != host.end();
    if (is_own) config.local_size = static_cast<int>(host.size());
  }
  if (config.stall_shutdown_time_s > 0) {
    config.stall_check_time_s = std::min(config.stall_check_time_s, config.stall_shutdown_time_s);
  }
  return config;
}

}  // namespace

Engine::Engine(EngineConfig config, std::shared_ptr<SharedSpace> space,
               std::vector<WatchedProcess> processes, Connections connections)
    : config_(completed(std::move(config), connections.hosts)),
      is_carried_(connections.world.carrier != nullptr),
      hosts_(std::move(connections.hosts)),
      space_(std::move(space)),
      devices_(std::move(connections.devices)),
      region_(space_->map(0, words_bytes(config_.size))),
      presence_(region_->data(), config_.rank, config_.size, std::move(connections.doorbells)),
      alarms_(region_->data() + Presence::region_bytes(config_.size), config_.size),
      spin_(config_.usable_cores >= config_.local_size && config_.usable_cores > 1
                ? Nanoseconds(kSpin)
                : Nanoseconds(0)),
      tracer_(make_tracer(processes)),
      recorder_(tracer_->recorder()),
      handles_(config_.generation),
      departures_ns_(static_cast<std::size_t>(config_.size)),
      cycle_time_us_(config_.tuning.bucket.cycle_time_us) {
  std::vector<int> world(static_cast<std::size_t>(config_.size));
  std::iota(world.begin(), world.end(), 0);
  sets_[0] = {.members = std::move(world), .links = std::move(connections.world)};
  recorder_.record_now(
      {.kind = EventKind::kWorld, .subject = static_cast<std::uint32_t>(config_.generation)});
  note_unattended();
  open_context(0);
  start_watching(std::move(processes), std::exchange(connections.news, {}));
  tracer_->start();
  background_ = quiet_thread([this] { run_background(); });  // last: nothing throws after it
}

Engine::~Engine() {
  shutdown();
  for (std::atomic<ProcessSetContext*>& context : contexts_) delete context.load();
}

HandleId Engine::submit(int set, std::span<const Submission> submissions, Intent intent,
                        HandleTable::Continuation then) {
  throw_if_forked();
  bool became_ready = false;
  bool is_continued = false;
  HandleId handle = 0;
  ProcessSetContext* context = nullptr;
  {
    const std::lock_guard guard(mutex_);
    throw_if_over(submissions);
    context = &context_for(set, submissions);
    submitted_.clear();
    for (const Submission& submission : submissions) {
      submitted_.push_back(&prepare(*context, submission));
    }
    refuse_duplicates(submitted_);
    is_continued = static_cast<bool>(then);
    handle = handles_.open(submitted_.size(), std::move(then));
    for (const Submission& submission : submissions) {
      if (submission.flight != nullptr) handles_.add_flight(handle, submission.flight);
    }
    if (is_continued) {
      has_landed_.store(handles_.has_landed());  // of no operations
      note_unattended();
      presence_.expect();
    }
    became_ready = arrive_all(*context, submitted_, handle);
  }
  wake_after_submit(*context, became_ready, intent);
  if (is_continued) deliver();  // what could not be submitted
  return handle;
}

Entry& Engine::prepare(ProcessSetContext& context, const Submission& submission) {
  refuse_impossible(context, submission);
  const Request& request = submission.requests.front();
  std::string generated;
  std::string_view name = submission.name;
  if (name.empty()) name = generated = running_name(context, request);
  Entry& entry = context.tensors.find_or_create(name);
  if (entry.is_in_flight) {
    throw Error(ErrorCode::kInvalidArgument,
                title(context, entry) +
                    ": a tensor of this name is still being processed on rank " +
                    std::to_string(config_.rank) + "; synchronize it first or use another name");
  }
  entry.requests.assign(submission.requests.begin(), submission.requests.end());
  entry.tensors.assign(submission.tensors.begin(), submission.tensors.end());
  entry.flight = submission.flight;
  for (std::size_t i = 0; i < entry.requests.size(); ++i) {
    Request& each = entry.requests[i];
    each.memory = memory_of(entry.tensors[i].device);
    each.rank = config_.rank;
    each.is_unnamed = submission.name.empty();
  }
  const std::uint64_t last_signature = std::exchange(entry.signature, signature_of(entry.requests));
  if (entry.signature != last_signature || recorder_.is_forgotten(entry.label))
    label(context, entry);
  entry.splits.assign(submission.splits.begin(), submission.splits.end());
  if (request.kind == Kind::kAlltoall && entry.splits.empty()) {
    entry.splits.assign(context.members.size(), request.dims[0] / context.size());
  }
  if (config_.is_debug) entry.objection = objection_to(entry);
  return entry;
}

void Engine::label(const ProcessSetContext& context, Entry& entry) {
  const Request& request = entry.request();
  Label label{.key = entry.key.low,
              .process_set = static_cast<std::uint16_t>(context.id),
              .kind = static_cast<std::uint8_t>(request.kind),
              .dtype = static_cast<std::uint8_t>(request.dtype),
              .tensors = static_cast<std::uint16_t>(std::min<std::size_t>(
                  entry.requests.size(), std::numeric_limits<std::uint16_t>::max())),
              .dims_count = static_cast<std::uint8_t>(request.dims_count),
              .op = static_cast<std::uint8_t>(request.op)};
  label.set_name(entry.name);
  std::ranges::copy(request.shape().first(std::min(request.shape().size(), Label::kMaxDims)),
                    label.dims.begin());
  entry.label = recorder_.add_label(label);
}

std::string Engine::running_name(ProcessSetContext& context, const Request& request) const {
  if (request.kind == Kind::kJoin) return "join.noname";
  return name_of(request) + ".noname." + std::to_string(++context.auto_name(request));
}

// Said before the operation takes a name or a number.
void Engine::refuse_impossible(const ProcessSetContext& context,
                               const Submission& submission) const {
  const auto reason = refusal_of(submission, context.members);
  if (!reason) return;
  const Request& request = submission.requests.front();
  const std::string what =
      submission.name.empty() ? name_of(request) : title_of(submission.name, request);
  throw Error(ErrorCode::kInvalidArgument, what + context.suffix() + ": " + *reason);
}

void Engine::refuse_duplicates(std::span<Entry* const> entries) {
  // Two submissions of one call under one name share an entry.
  std::size_t chosen = 0;
  for (; chosen < entries.size() && !entries[chosen]->is_submitting; ++chosen) {
    entries[chosen]->is_submitting = true;
  }
  if (chosen == entries.size()) return;
  for (std::size_t i = 0; i < chosen; ++i) entries[i]->is_submitting = false;
  throw Error(ErrorCode::kInvalidArgument,
              entries[chosen]->title() + ": the name occurs twice in one call");
}

bool Engine::arrive_all(ProcessSetContext& context, std::span<Entry* const> entries,
                        HandleId handle) {
  bool became_ready = false;
  const std::int64_t now = now_ns();
  last_submit_ns_.store(now, std::memory_order_relaxed);
  std::size_t position = 0;
  std::optional<Error> error;
  Recorder::Batch events(recorder_, entries.size());
  try {
    const SharedLock lock = context.negotiation.lock();
    for (; position < entries.size(); ++position) {
      became_ready |= arrive(context, *entries[position], handle, position, now, events);
    }
  } catch (const Error& caught) {
    error = caught.of(title(context, *entries[position]));
  }
  for (; position < entries.size(); ++position) {
    entries[position]->is_submitting = false;
    complete(handle, position, error, {});
  }
  return became_ready;
}

// Under the board's lock.
bool Engine::arrive(ProcessSetContext& context, Entry& entry, HandleId handle, std::size_t position,
                    std::int64_t now, Recorder::Batch& events) {
  const bool is_ready = context.negotiation.arrive(entry.key, entry.requests, entry.splits,
                                                   entry.signature, entry.ref, entry.objection);
  const std::size_t size_bytes = entry.size_bytes();
  count_arrival(context, entry, size_bytes, now);
  entry.handle = handle;
  entry.position = position;
  entry.submitted_ns = now;
  entry.is_submitting = false;
  context.tensors.bind_slot(entry);
  context.tensors.take_off(entry);
  context.flights.fetch_add(1);
  events.add({.time_ns = now,
              .kind = EventKind::kSubmit,
              .detail = static_cast<std::uint8_t>(is_ready),
              .process_set = static_cast<std::uint16_t>(context.id),
              .subject = entry.label,
              .value = size_bytes});
  return is_ready;
}

void Engine::count_arrival(const ProcessSetContext& context, const Entry& entry,
                           std::size_t size_bytes, std::int64_t now) {
  KindCounts& counts = counters_.kinds[static_cast<std::size_t>(entry.request().kind)];
  counts.operations.add(1);
  counts.tensors.add(entry.requests.size());
  counts.bytes.add(size_bytes);
  if (entry.submitted_ns == 0) return;
  counters_.pacemaker.beat(entry.key.low + static_cast<std::uint64_t>(context.id),
                           entry.submitted_ns, now);
}

void Engine::wake_after_submit(const ProcessSetContext& context, bool became_ready, Intent intent) {
  if (became_ready) {
    for (const int rank : context.local) {
      if (presence_.wait_state(rank) == WaitState::kHelperAsleep) presence_.ring(rank);
      if (rank != config_.rank) presence_.tell(rank);
    }
  }
  // A thread that sleeps for the sake of another set must hear of this one.
  if (const int set = sleeping_set(); set >= 0 && set != context.id) {
    const std::lock_guard guard(mutex_);
    wake_sleeper();
  }
  if (intent == Intent::kWait && !is_carried_) return;
  const bool must_run =
      became_ready && (intent != Intent::kMore || has_spare_cores()) && is_left_to_background();
  WakePolicy wanted =
      WakePolicy::kNapping;  // at least: the stall check needs a thread that looks now and then
  if (must_run)
    wanted =
        is_enough(context.negotiation.ready_bytes()) ? WakePolicy::kUrgent : WakePolicy::kAlert;
  // It may need a rank that is gone, which somebody must find out.
  if (has_departures_.load()) wanted = WakePolicy::kUrgent;
  // Other hosts cannot ring a bell: somebody must listen to them.
  if (context.spans_hosts() && is_left_to_background())
    wanted = std::max(wanted, WakePolicy::kAlert);
  if (wake_policy_.load() >= wanted) return;
  wake_policy_.store(wanted);
  ring_background();
}

bool Engine::is_left_to_background() const {
  const WaitState wait_state = presence_.wait_state(config_.rank);
  return wait_state == WaitState::kBackground || wait_state == WaitState::kExpectant;
}

bool Engine::has_ready() const {
  bool found = false;
  for_each_context(
      [&](const ProcessSetContext& context) { found = found || context.negotiation.has_ready(); });
  return found;
}

bool Engine::is_enough(std::size_t ready_bytes) const {
  return ready_bytes >= eagerness_of(config_, is_unattended_.load()).enough_bytes;
}

// How long what is ready waits for more to come, from the moment it was seen.
Nanoseconds Engine::linger() const {
  const std::uint32_t cycle_time_us = cycle_time_us_.load(std::memory_order_relaxed);
  if (cycle_time_us == 0) return eagerness_of(config_, is_unattended_.load()).linger;
  return std::chrono::microseconds(cycle_time_us);
}

bool Engine::confirm(Nanoseconds limit) {
  throw_if_forked();
  if (devices_.gpus == nullptr || !devices_.gpus->is_open()) return true;
  const std::int64_t deadline_ns = now_ns() + limit.count();
  bool is_working = true;
  do {
    if (take_role(true)) {
      step(true);
      is_working = has_device_work_.load();
      if (release_role()) ring_background();
      deliver();
    }
    {
      const std::lock_guard guard(mutex_);
      if (fatal_) throw *fatal_;
    }
    if (is_working) std::this_thread::sleep_for(kConfirmInterval);
  } while (is_working && now_ns() < deadline_ns);
  return !is_working;
}

void Engine::tune(const Tuning& tuning) {
  throw_if_forked();
  if (config_.rank != 0) throw Error(ErrorCode::kInvalidArgument, "only rank 0 can tune");
  refuse_cut(tuning.bucket.cut);
  const std::lock_guard guard(mutex_);
  throw_if_over({});
  NegotiationTable& negotiation = contexts_[0].load()->negotiation;
  const SharedLock lock = negotiation.lock();
  negotiation.tune(tuning);
}

int Engine::flights_in_all() {
  int count = 0;
  const std::lock_guard guard(mutex_);
  for_each_context([&](const ProcessSetContext& context) { count += context.flights.load(); });
  return count;
}

void Engine::throw_if_forked() const {
  if (!is_abandoned_) return;
  throw Error(ErrorCode::kAborted, "this process was forked from rank " +
                                       std::to_string(config_.rank) +
                                       "; Horovod goes on in the parent only");
}

void Engine::throw_if_over(std::span<const Submission> submissions) const {
  if (!fatal_) return;
  if (submissions.empty()) throw *fatal_;
  const Submission& first = submissions.front();
  const Request& request = first.requests.front();
  throw fatal_->of(first.name.empty() ? name_of(request) : title_of(first.name, request));
}

bool Engine::contains(HandleId handle) {
  if (is_abandoned_) return false;
  const std::lock_guard guard(mutex_);
  return handles_.contains(handle);
}

void Engine::continue_with(HandleId handle, HandleTable::Continuation then) {
  {
    const std::lock_guard guard(mutex_);
    handles_.continue_with(handle, std::move(then));
    has_landed_.store(handles_.has_landed());
    note_unattended();
  }
  deliver();
  ring_background();
}

bool Engine::deliver() {
  if (!has_landed_.load()) return false;
  std::vector<HandleTable::Landed> landed;
  {
    const std::lock_guard guard(mutex_);
    landed = handles_.take_landed();
    has_landed_.store(false);
  }
  for (auto& [then, result] : landed) then(std::move(result));
  return !landed.empty();
}

HandleTable::Result Engine::take(HandleId handle) {
  const std::lock_guard guard(mutex_);
  return handles_.close(handle);
}

void Engine::shutdown() {
  if (is_abandoned_ || is_shut_down_.exchange(true)) return;
  let_comparisons_end();
  stopping_.store(true);
  ring_background();
  {
    const std::lock_guard guard(mutex_);
    wake_sleeper();
  }
  if (background_.joinable()) background_.join();
  tracer_->end_traces();  // while other hosts are heard
  watcher_.reset();
  std::unique_lock lock(mutex_);
  const Error error(ErrorCode::kAborted,
                    "Horovod has been shut down on rank " + std::to_string(config_.rank));
  const bool was_healthy = !fatal_.has_value();
  fatal_ = error;
  // A helper sees stopping_ within one slice of its wait.
  changed_.wait(lock, [this] { return !role_taken_; });
  role_taken_ = true;
  recorder_.record_now({.kind = EventKind::kLeft});
  lock.unlock();
  if (was_healthy) tracer_->want_last_file();
  tracer_->stop();
  lock.lock();
  space_.reset();  // who keeps this engine for a handle's sake keeps no descriptor
  lock.unlock();
  if (was_healthy) {
    for_each_context([](ProcessSetContext& context) { context.leave_devices(true); });
  } else {
    abort_devices();
  }
  fail_everything(error);
  if (was_healthy) alarms_.note_departure(config_.rank);
  presence_.set_liveness(config_.rank, Liveness::kLeft);
  alarms_.touch();
  tell_other_hosts();
  wake_everyone();
  disconnect();
  deliver();
}

void Engine::let_waits_end(Nanoseconds limit) {
  const std::int64_t deadline_ns = now_ns() + limit.count();
  while (waiting_threads_.load() != 0 && now_ns() < deadline_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Engine::abandon() {
  is_abandoned_ = true;
  background_.detach();
  static_cast<void>(watcher_.release());
  tracer_->abandon();
  // Only descriptors: as long as this process held them, nobody would see the parent die.
  for_each_context([](ProcessSetContext& context) { context.close_copies(); });
  if (news_ != nullptr) news_->close_copies();
}

}  // namespace hvd
