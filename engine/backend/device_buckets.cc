#include "backend/device_buckets.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/clock.h"

namespace hvd {

namespace {

// How long a rank that leaves waits for its work, and for the other ranks to leave.
constexpr Nanoseconds kWorkLimit = std::chrono::seconds(5);
constexpr Nanoseconds kLeaveLimit = std::chrono::seconds(1);
// A check costs about a microsecond.
constexpr Nanoseconds kWatchInterval = std::chrono::microseconds(100);

}  // namespace

DeviceBuckets::DeviceBuckets(const DevicePlane& plane, Backend& host, Place place,
                             const HostMap& hosts, const std::vector<std::string>& names, Say say)
    : gpu_(plane.gpus->open()),
      config_(plane.config),
      group_{.gpu = *gpu_, .host = host, .place = place, .names = names},
      say_(std::move(say)),
      negotiation_(group_, config_),
      ipc_negotiation_(group_),
      adasum_negotiation_(group_),
      levels_negotiation_(group_, hosts, config_.timeout_s),
      launch_(*gpu_, place),
      staging_(*gpu_, host, place),
      may_launch_(plane.may_launch) {}

DeviceBuckets::~DeviceBuckets() { abort(); }

void DeviceBuckets::begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) {
  polled_since_ns_ = 0;
  kind_ = kind;
  cut_ = cut;
  bucket_ = works;
  device_ = device_of(works);
  if (negotiation_.has_begun()) return begin_bucket();
  negotiation_.begin(device_);
  await(negotiation_, &DeviceBuckets::end_negotiation);
}

void DeviceBuckets::await(Negotiation& negotiation, void (DeviceBuckets::*then)()) {
  phase_ = Phase::kNegotiating;
  awaited_ = &negotiation;
  then_ = then;
}

bool DeviceBuckets::advance(PeerWait& blocked) {
  while (phase_ != Phase::kDone) {
    if (step(blocked)) {
      polled_since_ns_ = 0;
      continue;
    }
    if (blocked.is_polled && polled_since_ns_ == 0) polled_since_ns_ = now_ns();
    return false;
  }
  report_full_gpu();
  return true;
}

// Each rank for itself, once for all process sets.
void DeviceBuckets::report_full_gpu() {
  if (const auto warning = gpu_->memory().take_warning()) {
    say_(group_.names[static_cast<std::size_t>(group_.place.rank)] + ": " + *warning);
  }
}

// True when the phase is over; the next one has begun.
bool DeviceBuckets::step(PeerWait& blocked) {
  switch (phase_) {
    case Phase::kNegotiating:
      if (!awaited_->advance(blocked)) return false;
      (this->*then_)();
      return true;
    case Phase::kAwaitingTurn:
      if (!may_launch_()) {
        blocked = {.is_polled = true, .is_for_turn = true};
        return false;
      }
      launch();
      return true;
    case Phase::kLaunching:
      if (!launch_.advance()) {
        blocked = {.is_polled = true};
        return false;
      }
      leave_event(launched_works_, launch_.done());
      begin_sharing();
      return true;
    case Phase::kSharing:
      if (!ipc_->advance(blocked)) return false;
      leave_event(shared_works_, ipc_->done());
      begin_staging();
      return true;
    default:
      if (!staging_.advance(blocked)) return false;
      leave_event(staged_works_, staging_.done());
      phase_ = Phase::kDone;
      return true;
  }
}

int DeviceBuckets::device_of(std::span<const Work> works) const {
  const auto found = std::ranges::find_if(works, [](const Work& work) { return work.device >= 0; });
  if (found != works.end()) return found->device;
  return config_.default_device % gpu_->driver().device_count();
}

void DeviceBuckets::end_negotiation() {
  channels_ = negotiation_.take_channels();
  is_route_known_ = true;
  if (may_share()) {
    ipc_negotiation_.begin(device_, config_.ipc_pass_bytes);
    return await(ipc_negotiation_, &DeviceBuckets::end_opening);
  }
  report_route();
  begin_bucket();
}

// The same on all ranks.
bool DeviceBuckets::may_share() const {
  if (!negotiation_.obstacle() || !config_.is_one_host || group_.place.size == 1) return false;
  if (static_cast<std::size_t>(group_.place.size) > kMostSources) return false;
  for (int kind = 0; kind < kKindCount; ++kind) {
    const DeviceRoute route = common_route(negotiation_.capabilities(), static_cast<Kind>(kind));
    if (route == DeviceRoute::kAny) return true;
  }
  return false;
}

void DeviceBuckets::end_opening() {
  if (!ipc_negotiation_.obstacle()) {
    ipc_ = std::make_unique<DeviceIpc>(*gpu_, group_.host, group_.place,
                                       ipc_negotiation_.take_peers());
  }
  report_route();
  begin_bucket();
}

void DeviceBuckets::report_route() const {
  if (group_.place.rank != 0) return;
  for (const std::string& text : negotiation_.warnings()) say_(text);
  if (!negotiation_.obstacle()) return;
  std::string text = *negotiation_.obstacle();
  if (ipc_negotiation_.obstacle())
    text += "; CUDA IPC cannot be used either: " + *ipc_negotiation_.obstacle();
  const char* const route = ipc_ != nullptr ? "GPU tensors travel over CUDA IPC: "
                                            : "GPU tensors travel through host memory: ";
  say_(route + text);
}

void DeviceBuckets::begin_bucket() {
  launched_works_.clear();
  shared_works_.clear();
  staged_works_.clear();
  const DeviceRoute route = common_route(negotiation_.capabilities(), kind_);
  if (route == DeviceRoute::kNccl && channels_.empty()) {
    throw Error(ErrorCode::kSystem, "GPU tensors must travel over NCCL, but cannot: " +
                                        negotiation_.obstacle().value_or("it is turned off"));
  }
  const bool has_nccl = route != DeviceRoute::kHost && !channels_.empty();
  if (has_nccl && is_adasum(bucket_) && !adasum_negotiation_.has_begun()) {
    adasum_negotiation_.begin(device_);
    return await(adasum_negotiation_, &DeviceBuckets::end_adasum_negotiation);
  }
  const bool has_ipc = route != DeviceRoute::kHost && ipc_ != nullptr;
  for (const Work& work : bucket_) {
    if (has_nccl && is_for_nccl(*work.request)) {
      launched_works_.push_back(work);
    } else {
      (has_ipc && ipc_runs(*work.request) ? shared_works_ : staged_works_).push_back(work);
    }
  }
  if (has_nccl || has_ipc) report_adasum();
  if (launched_works_.empty()) return begin_sharing();
  begin_launch();
}

bool DeviceBuckets::is_for_nccl(const Request& request) const {
  if (request.op == ReduceOp::kAdasum) return adasum_ != nullptr;
  return nccl_runs(request, group_.place.size);
}

void DeviceBuckets::end_adasum_negotiation() {
  if (!adasum_negotiation_.obstacle()) {
    adasum_ = std::make_unique<NcclAdasum>(*gpu_, group_.place, adasum_negotiation_.take_kernels());
  }
  begin_bucket();
}

// Reports once that Adasum uses host memory although other collectives of this set do not.
void DeviceBuckets::report_adasum() {
  if (has_reported_adasum_ || group_.place.rank != 0 || !is_adasum(staged_works_)) return;
  has_reported_adasum_ = true;
  std::string text = "Adasum of GPU tensors goes through host memory: the CPU combines them";
  if (adasum_negotiation_.obstacle()) text += "; " + *adasum_negotiation_.obstacle();
  say_(text);
}

void DeviceBuckets::begin_launch() {
  const bool has_levels = is_hierarchical(negotiation_.capabilities(), kind_);
  if (!has_levels || is_adasum(launched_works_)) return await_turn(nullptr);
  if (levels_negotiation_.has_begun()) return await_turn(levels_negotiation_.levels());
  levels_negotiation_.begin(channels_);
  await(levels_negotiation_, &DeviceBuckets::end_levels_negotiation);
}

void DeviceBuckets::end_levels_negotiation() {
  const std::optional<std::string>& obstacle = levels_negotiation_.obstacle();
  if (obstacle && group_.place.rank == 0) {
    say_("Collectives on GPUs cannot be hierarchical, so they run over all ranks at once: " +
         *obstacle);
  }
  await_turn(levels_negotiation_.levels());
}

void DeviceBuckets::await_turn(const NcclLevels* levels) {
  levels_ = levels;
  phase_ = Phase::kAwaitingTurn;
}

void DeviceBuckets::launch() {
  if (is_adasum(launched_works_)) {
    launch_.begin_adasum(launched_works_, next_channel(), *adasum_);
  } else {
    launch_.begin(launched_works_, next_channel(), levels_);
  }
  phase_ = Phase::kLaunching;
}

void DeviceBuckets::begin_sharing() {
  if (shared_works_.empty()) return begin_staging();
  ipc_->begin(shared_works_);
  phase_ = Phase::kSharing;
}

void DeviceBuckets::begin_staging() {
  if (staged_works_.empty()) {
    phase_ = Phase::kDone;
    return;
  }
  staging_.begin(kind_, staged_works_, cut_, device_);
  phase_ = Phase::kStaging;
}

void DeviceBuckets::leave_event(std::span<const Work> works, const CudaEventPtr& event) {
  for (const Work& work : works) {
    if (work.dependency != nullptr) work.dependency->add_done(event);
    if (work.block != nullptr) work.block->last_use = event;  // the caller may drop the result
  }
  unfinished_.push_back(event);
}

Nanoseconds DeviceBuckets::pause() const {
  if (polled_since_ns_ == 0) return group_.host.pause();
  return pause_after(polled_since_ns_);
}

bool DeviceBuckets::watch() {
  if (unfinished_.empty()) return false;
  const std::int64_t now = now_ns();
  if (now - watched_ns_ < kWatchInterval.count()) return true;
  watched_ns_ = now;
  std::erase_if(unfinished_, [](const CudaEventPtr& event) { return event->is_reached(); });
  if (!unfinished_.empty()) check_channels(channels_);
  return !unfinished_.empty();
}

void DeviceBuckets::leave() {
  const std::int64_t deadline_ns = now_ns() + kWorkLimit.count();
  try {
    while (watch() && now_ns() < deadline_ns) std::this_thread::sleep_for(kLookInterval);
    if (!unfinished_.empty()) return abort();
  } catch (const Error&) {
    return abort();
  }
  leave_channels(channels_, kLeaveLimit);
  if (ipc_ != nullptr) ipc_->close();
}

void DeviceBuckets::abort() {
  abort_channels(channels_);
  if (ipc_ != nullptr) ipc_->close();
}

}  // namespace hvd
