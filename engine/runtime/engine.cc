// Construction, submission, results and the end. What runs collectives is in progress.cc, what
// waits in waiting.cc, what looks after stalled tensors and lost peers in health.cc.
#include "runtime/engine.h"

#include <algorithm>
#include <utility>

#include "runtime/quiet_thread.h"

namespace hvd {

namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
// When the background thread starts what is ready while no thread waits for it. With a core to
// spare soon, to overlap with the computation; without one it would only take turns with it, so it
// lets more come together and leaves the work to the thread that will wait.
struct Eagerness {
  Nanoseconds linger;
  std::size_t enough_bytes;  // ready: do not linger
};
constexpr Eagerness kOverlap{.linger = std::chrono::microseconds(50), .enough_bytes = 1UL << 20};
constexpr Eagerness kTakeTurns{.linger = std::chrono::milliseconds(5), .enough_bytes = 64UL << 20};

const Eagerness& eagerness_of(const EngineConfig& config) {
  return config.has_spare_cores() ? kOverlap : kTakeTurns;
}

Nanoseconds linger_of(const EngineConfig& config) {
  if (config.cycle_time_s <= 0) return eagerness_of(config).linger;
  return Nanoseconds(static_cast<std::int64_t>(config.cycle_time_s * 1e9));
}

// The check runs at the shutdown time too, where that is the shorter one.
EngineConfig checked(EngineConfig config) {
  if (config.stall_shutdown_time_s > 0) {
    config.stall_check_time_s = std::min(config.stall_check_time_s, config.stall_shutdown_time_s);
  }
  return config;
}

}  // namespace

std::size_t Engine::region_bytes(int size) {
  return Board::region_bytes(size) + Peers::region_bytes(size);
}

Engine::Engine(EngineConfig config, std::shared_ptr<Region> region,
               std::vector<WatchedProcess> processes)
    : config_(checked(std::move(config))),
      region_(std::move(region)),
      board_(region_->data(),
             {.rank = config_.rank,
              .size = config_.size,
              .cache_capacity = config_.cache_capacity,
              .fusion_threshold_bytes = config_.fusion_threshold_bytes,
              .check_holder = [this](int holder,
                                     Nanoseconds waited) { check_holder(holder, waited); }}),
      peers_(region_->data() + Board::region_bytes(config_.size), config_.rank, config_.size),
      backend_(peers_),
      spin_(config_.usable_cores >= config_.size && config_.usable_cores > 1 ? Nanoseconds(kSpin)
                                                                             : Nanoseconds(0)),
      linger_(linger_of(config_)),
      handles_(config_.generation),
      auto_names_(kKindCount, 0) {
  watcher_ =
      std::make_unique<Watcher>(std::move(processes), [this](int rank) { on_peer_death(rank); });
  background_ = quiet_thread([this] { run_background(); });  // last: nothing throws after it
}

Engine::~Engine() { shutdown(); }

HandleId Engine::submit(std::span<const Submission> submissions, Intent intent) {
  throw_if_forked();
  bool became_ready = false;
  HandleId handle = 0;
  {
    const std::lock_guard guard(mutex_);
    throw_if_over();
    submitted_.clear();
    for (const Submission& submission : submissions) submitted_.push_back(&prepare(submission));
    refuse_duplicates(submitted_);
    handle = handles_.open(submitted_.size());
    became_ready = arrive_all(submitted_, handle);
  }
  wake_after_submit(became_ready, intent);
  return handle;
}

Entry& Engine::prepare(const Submission& submission) {
  refuse_impossible(submission);
  std::string generated;
  std::string_view name = submission.name;
  if (name.empty()) {
    const Kind kind = submission.request.kind;
    generated = std::string(name_of(kind)) + ".noname." +
                std::to_string(++auto_names_[static_cast<std::size_t>(kind)]);
    name = generated;
  }
  Entry& entry = tensors_.find_or_create(name);
  if (entry.is_in_flight) {
    throw Error(ErrorCode::kInvalidArgument,
                entry.title() + ": a tensor of this name is still being processed on rank " +
                    std::to_string(config_.rank) + "; synchronize it first or use another name");
  }
  entry.request = submission.request;
  entry.request.rank = config_.rank;
  entry.in = submission.in;
  entry.out = submission.out;
  return entry;
}

// What this rank can see alone; said before the operation takes a name or a number.
void Engine::refuse_impossible(const Submission& submission) const {
  const Request& request = submission.request;
  const auto refuse = [&](const std::string& reason) {
    const std::string name =
        submission.name.empty() ? name_of(request.kind) : std::string(submission.name);
    throw Error(ErrorCode::kInvalidArgument, name + ": " + reason);
  };
  if (request.kind == Kind::kBroadcast && (request.root < 0 || request.root >= config_.size)) {
    refuse("invalid root rank " + std::to_string(request.root) + "; the world has ranks 0 to " +
           std::to_string(config_.size - 1));
  }
  if (request.kind != Kind::kAllreduce) return;
  const char* reason = unsupported_reason({.dtype = request.dtype,
                                           .op = request.op,
                                           .prescale = request.prescale,
                                           .postscale = request.postscale,
                                           .divisor = config_.size});
  if (reason != nullptr) refuse(reason);
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

bool Engine::arrive_all(std::span<Entry* const> entries, HandleId handle) {
  bool became_ready = false;
  const std::int64_t now = now_ns();
  last_submit_ns_.store(now, std::memory_order_relaxed);
  std::size_t position = 0;
  std::optional<Error> error;
  try {
    const SharedLock lock = board_.lock();
    for (; position < entries.size(); ++position) {
      became_ready |= arrive(*entries[position], handle, position, now);
    }
  } catch (const Error& caught) {
    error = Error(caught.code(), entries[position]->title() + ": " + caught.what());
  }
  for (; position < entries.size(); ++position) {
    entries[position]->is_submitting = false;
    handles_.complete(handle, position, error, {});
  }
  return became_ready;
}

// Under the board's lock.
bool Engine::arrive(Entry& entry, HandleId handle, std::size_t position, std::int64_t now) {
  const std::uint64_t signature = signature_of(entry.request);
  const bool is_ready = board_.arrive(entry.key, entry.request, signature, entry.ref);
  entry.handle = handle;
  entry.position = position;
  entry.submitted_ns = now;
  entry.is_submitting = false;
  tensors_.bind_slot(entry);
  tensors_.take_off(entry);
  recorder_.record(now, EventKind::kSubmit, entry.ref.slot, entry.request.size_bytes());
  if (is_ready) recorder_.record(now, EventKind::kReady, entry.ref.slot, 0);
  return is_ready;
}

void Engine::wake_after_submit(bool became_ready, Intent intent) {
  if (became_ready) {
    for (int rank = 0; rank < config_.size; ++rank) {
      if (peers_.attention(rank) == Attention::kHelperAsleep) peers_.ring(rank);
    }
  }
  if (intent == Intent::kWait) return;
  const bool must_run = became_ready && (intent == Intent::kCompute || has_spare_cores()) &&
                        peers_.attention(config_.rank) == Attention::kBackground;
  Mood wanted = Mood::kNapping;  // at least: the stall check needs a thread that looks now and then
  if (must_run) wanted = has_enough_ready() ? Mood::kUrgent : Mood::kAlert;
  if (mood_.load() >= wanted) return;
  mood_.store(wanted);
  ring_background();
}

bool Engine::has_enough_ready() const {
  return board_.ready_bytes() >= eagerness_of(config_).enough_bytes;
}

void Engine::throw_if_forked() const {
  if (!is_abandoned_) return;
  throw Error(ErrorCode::kAborted, "this process was forked from rank " +
                                       std::to_string(config_.rank) +
                                       "; Horovod goes on in the parent only");
}

void Engine::throw_if_over() const {
  if (fatal_) throw *fatal_;
}

bool Engine::contains(HandleId handle) {
  if (is_abandoned_) return false;
  const std::lock_guard guard(mutex_);
  return handles_.contains(handle);
}

HandleTable::Result Engine::take(HandleId handle) {
  const std::lock_guard guard(mutex_);
  return handles_.close(handle);
}

void Engine::shutdown() {
  if (is_abandoned_ || is_shut_down_.exchange(true)) return;
  stopping_.store(true);
  ring_background();
  kick_sleeper();
  if (background_.joinable()) background_.join();
  watcher_.reset();
  std::unique_lock lock(mutex_);
  const Error error(ErrorCode::kAborted,
                    "Horovod has been shut down on rank " + std::to_string(config_.rank));
  const bool was_healthy = !fatal_.has_value();
  fatal_ = error;
  // A helper sees stopping_ within one slice of its wait.
  changed_.wait(lock, [this] { return !role_taken_; });
  role_taken_ = true;
  lock.unlock();
  fail_everything(error);
  if (was_healthy) board_.note_departure(config_.rank);
  peers_.set_liveness(config_.rank, Liveness::kLeft);
  board_.touch_alarm();
  wake_everyone();
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
}

}  // namespace hvd
