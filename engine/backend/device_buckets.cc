#include "backend/device_buckets.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/clock.h"

namespace hvd {

namespace {

constexpr Nanoseconds kShortestPause = std::chrono::microseconds(2);
constexpr Nanoseconds kLongestPause = std::chrono::microseconds(200);
// For what is under way when this rank leaves; for the others to leave, too.
constexpr Nanoseconds kWorkPatience = std::chrono::seconds(5);
constexpr Nanoseconds kLeavePatience = std::chrono::seconds(1);
constexpr auto kLook = std::chrono::microseconds(100);
// Asking costs about a microsecond.
constexpr Nanoseconds kWatchInterval = std::chrono::microseconds(100);

}  // namespace

DeviceBuckets::DeviceBuckets(std::shared_ptr<Gpu> gpu, const DeviceConfig& config, Backend& host,
                             Place place, const HostMap& hosts,
                             const std::vector<std::string>& names, Say say)
    : gpu_(std::move(gpu)),
      config_(config),
      host_(host),
      place_(place),
      say_(std::move(say)),
      meeting_(*gpu_, config_, host_, place, names),
      ipc_negotiation_(*gpu_, host_, place, names),
      adasum_negotiation_(*gpu_, host_, place, names),
      levels_negotiation_(*gpu_, host_, place, hosts, names, config.timeout_s),
      launch_(*gpu_, place),
      staging_(*gpu_, host_, place) {}

DeviceBuckets::~DeviceBuckets() { abort(); }

void DeviceBuckets::begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) {
  polled_since_ns_ = 0;
  kind_ = kind;
  cut_ = cut;
  bucket_ = works;
  device_ = device_of(works);
  if (has_met_) {
    begin_bucket();
  } else {
    phase_ = Phase::kMeeting;
    meeting_.begin(device_);
  }
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
  return true;
}

// True when the phase is over; the next one has begun.
bool DeviceBuckets::step(PeerWait& blocked) {
  switch (phase_) {
    case Phase::kMeeting:
      if (!meeting_.advance(blocked)) return false;
      end_negotiation();
      return true;
    case Phase::kOpening:
      if (!ipc_negotiation_.advance(blocked)) return false;
      end_opening();
      return true;
    case Phase::kAdasum:
      if (!adasum_negotiation_.advance(blocked)) return false;
      end_adasum_negotiation();
      begin_bucket();
      return true;
    case Phase::kLevels:
      if (!levels_negotiation_.advance(blocked)) return false;
      end_levels_negotiation();
      launch(levels_negotiation_.levels());
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
  has_met_ = true;
  channels_ = meeting_.take_channels();
  if (may_share()) {
    phase_ = Phase::kOpening;
    ipc_negotiation_.begin(device_, config_.ipc_pass_bytes);
    return;
  }
  say_way();
  begin_bucket();
}

// The same on all ranks.
bool DeviceBuckets::may_share() const {
  if (!meeting_.obstacle() || !config_.is_one_host || place_.size == 1) return false;
  if (static_cast<std::size_t>(place_.size) > kMostSources) return false;
  for (int kind = 0; kind < kKindCount; ++kind) {
    const DeviceRoute route = common_route(meeting_.cards(), static_cast<Kind>(kind));
    if (route == DeviceRoute::kAny) return true;
  }
  return false;
}

void DeviceBuckets::end_opening() {
  if (!ipc_negotiation_.obstacle()) {
    ipc_ = std::make_unique<DeviceIpc>(*gpu_, host_, place_, ipc_negotiation_.take_peers());
  }
  say_way();
  begin_bucket();
}

void DeviceBuckets::say_way() const {
  if (place_.rank != 0) return;
  for (const std::string& text : meeting_.warnings()) say_(text);
  if (!meeting_.obstacle()) return;
  std::string text = *meeting_.obstacle();
  if (ipc_negotiation_.obstacle()) text += "; nor over CUDA IPC: " + *ipc_negotiation_.obstacle();
  const char* const way = ipc_ != nullptr ? "GPU tensors travel over CUDA IPC: "
                                          : "GPU tensors travel through host memory: ";
  say_(way + text);
}

void DeviceBuckets::begin_bucket() {
  launched_works_.clear();
  shared_works_.clear();
  staged_works_.clear();
  const DeviceRoute route = common_route(meeting_.cards(), kind_);
  if (route == DeviceRoute::kNccl && channels_.empty()) {
    throw Error(ErrorCode::kSystem, "GPU tensors are to travel over NCCL, which cannot be: " +
                                        meeting_.obstacle().value_or("it is turned off"));
  }
  const bool has_nccl = route != DeviceRoute::kHost && !channels_.empty();
  if (has_nccl && is_adasum(bucket_) && !adasum_negotiation_.has_begun()) {
    adasum_negotiation_.begin(device_);
    phase_ = Phase::kAdasum;
    return;
  }
  const bool has_ipc = route != DeviceRoute::kHost && ipc_ != nullptr;
  for (const Work& work : bucket_) {
    if (has_nccl && is_for_nccl(*work.request)) {
      launched_works_.push_back(work);
    } else {
      (has_ipc && ipc_runs(*work.request) ? shared_works_ : staged_works_).push_back(work);
    }
  }
  if (has_nccl || has_ipc) say_adasum();
  if (launched_works_.empty()) return begin_sharing();
  begin_launch();
}

bool DeviceBuckets::is_for_nccl(const Request& request) const {
  if (request.op == ReduceOp::kAdasum) return adasum_ != nullptr;
  return nccl_runs(request, place_.size);
}

void DeviceBuckets::end_adasum_negotiation() {
  if (adasum_negotiation_.obstacle()) return;
  adasum_ = std::make_unique<NcclAdasum>(*gpu_, place_, adasum_negotiation_.take_kernels());
}

// Once, since elsewhere in this set GPU tensors do not leave the GPUs.
void DeviceBuckets::say_adasum() {
  if (has_said_adasum_ || place_.rank != 0 || !is_adasum(staged_works_)) return;
  has_said_adasum_ = true;
  std::string text = "Adasum of GPU tensors goes through host memory: the CPU combines them";
  if (adasum_negotiation_.obstacle()) text += "; " + *adasum_negotiation_.obstacle();
  say_(text);
}

void DeviceBuckets::begin_launch() {
  if (is_adasum(launched_works_)) {
    launch_.begin_adasum(launched_works_, next_channel(), *adasum_);
    phase_ = Phase::kLaunching;
    return;
  }
  if (!is_hierarchical(meeting_.cards(), kind_)) return launch(nullptr);
  if (levels_negotiation_.has_begun()) return launch(levels_negotiation_.levels());
  levels_negotiation_.begin(channels_);
  phase_ = Phase::kLevels;
}

void DeviceBuckets::end_levels_negotiation() {
  const std::optional<std::string>& obstacle = levels_negotiation_.obstacle();
  if (!obstacle || place_.rank != 0) return;
  say_("Hierarchical collectives on GPUs are those of all ranks at once: " + *obstacle);
}

void DeviceBuckets::launch(const NcclLevels* levels) {
  launch_.begin(launched_works_, next_channel(), levels);
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
  }
  unfinished_.push_back(event);
}

Nanoseconds DeviceBuckets::pause() const {
  if (polled_since_ns_ == 0) return host_.pause();
  return std::clamp(Nanoseconds((now_ns() - polled_since_ns_) / 8), kShortestPause, kLongestPause);
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
  const std::int64_t deadline_ns = now_ns() + kWorkPatience.count();
  try {
    while (watch() && now_ns() < deadline_ns) std::this_thread::sleep_for(kLook);
    if (!unfinished_.empty()) return abort();
  } catch (const Error&) {
    return abort();
  }
  leave_channels(channels_, kLeavePatience);
  if (ipc_ != nullptr) ipc_->close();
}

void DeviceBuckets::abort() {
  abort_channels(channels_);
  if (ipc_ != nullptr) ipc_->close();
}

}  // namespace hvd
