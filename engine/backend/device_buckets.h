// Runs the buckets of GPU tensors of a process set: over NCCL, through GPU memory that ranks of a
// host share, or through host memory.
//
// A bucket is complete here when all its work is in the streams of its GPU. An event is added to
// the stream dependency of each tensor: after it the results are there. All ranks together choose
// the route once, before the first bucket.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/adasum_negotiation.h"
#include "backend/backend.h"
#include "backend/device_ipc.h"
#include "backend/device_negotiation.h"
#include "backend/device_staging.h"
#include "backend/ipc_negotiation.h"
#include "backend/nccl_launch.h"
#include "backend/nccl_levels.h"

namespace hvd {

class DeviceBuckets {
 public:
  // Logs a text for the user; one rank does it, except for what is about this rank alone.
  using Say = std::function<void(const std::string& text)>;

  // `host`: the backend for host tensors of the set; buckets here run between its own. `hosts`:
  // where the ranks are; `names`: of the ranks.
  DeviceBuckets(const DevicePlane& plane, Backend& host, Place place, const HostMap& hosts,
                const std::vector<std::string>& names, Say say);
  ~DeviceBuckets();

  // As the methods of Backend.
  void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut);
  bool advance(PeerWait& blocked);
  Nanoseconds pause() const;
  bool watch();
  bool launches() const { return !is_route_known_ || !channels_.empty(); }
  void leave();
  void abort();

 private:
  enum class Phase { kNegotiating, kAwaitingTurn, kLaunching, kSharing, kStaging, kDone };

  int device_of(std::span<const Work> works) const;
  bool step(PeerWait& blocked);
  void await(Negotiation& negotiation, void (DeviceBuckets::*then)());
  void end_negotiation();
  bool may_share() const;
  void end_opening();
  void report_route() const;
  void begin_bucket();
  void end_adasum_negotiation();
  bool is_for_nccl(const Request& request) const;
  void begin_launch();
  void end_levels_negotiation();
  void await_turn(const NcclLevels* levels);
  void launch();
  DeviceChannel& next_channel() { return *channels_[launches_++ % channels_.size()]; }
  void report_adasum();
  void report_full_gpu();
  void begin_sharing();
  void begin_staging();
  void leave_event(std::span<const Work> works, const CudaEventPtr& event);

  const std::shared_ptr<Gpu> gpu_;
  const DeviceConfig config_;
  const DeviceGroup group_;
  const Say say_;
  DeviceNegotiation negotiation_;
  IpcNegotiation ipc_negotiation_;
  AdasumNegotiation adasum_negotiation_;
  std::unique_ptr<NcclAdasum> adasum_;  // null before it is wanted, and where it cannot be used
  LevelsNegotiation levels_negotiation_;
  NcclLaunch launch_;
  DeviceStaging staging_;
  const std::function<bool()> may_launch_;
  bool is_route_known_ = false;
  DeviceChannels channels_;             // none without NCCL
  const NcclLevels* levels_ = nullptr;  // of the next launch
  std::size_t launches_ = 0;
  bool has_reported_adasum_ = false;
  std::unique_ptr<DeviceIpc> ipc_;  // null with NCCL, and where it cannot be used
  Phase phase_ = Phase::kDone;
  Negotiation* awaited_ = nullptr;  // in the first phase
  void (DeviceBuckets::*then_)() = nullptr;
  Kind kind_ = Kind::kAllreduce;
  AllreduceCut cut_;
  int device_ = 0;
  std::span<const Work> bucket_;
  std::vector<Work> launched_works_;
  std::vector<Work> shared_works_;
  std::vector<Work> staged_works_;
  std::vector<CudaEventPtr> unfinished_;  // of complete buckets
  std::int64_t watched_ns_ = 0;
  std::int64_t polled_since_ns_ = 0;  // 0: it waits for the host backend
};

}  // namespace hvd
