// How the ranks of a host open each other's GPU memory, where they have no NCCL: each exports
// memory of its own, opens that of the others and tries it. Then all agree on whether all could.
// All ranks learn what has failed on one of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/device_negotiation.h"
#include "backend/ipc_trial.h"
#include "backend/status_agreement.h"

namespace hvd {

class IpcNegotiation {
 public:
  // `group`, all of this host, outlives this.
  explicit IpcNegotiation(const DeviceGroup& group) : group_(group) {}
  ~IpcNegotiation();
  IpcNegotiation(const IpcNegotiation&) = delete;
  IpcNegotiation& operator=(const IpcNegotiation&) = delete;

  // This rank's GPU is `device`; `pass_bytes` as in DeviceConfig.
  void begin(int device, std::size_t pass_bytes);
  // True at the end. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  // Why it cannot be used; none if it can.
  const std::optional<std::string>& obstacle() const { return obstacle_; }
  IpcPeers take_peers() { return std::move(peers_); }

 private:
  enum class Step { kShowing, kHandles, kTrying, kAgreement, kDone };

  bool is_gpu_done();
  void send_handle();
  void open_all();
  void send_status();
  void end();
  // An error that `step` throws becomes this rank's problem.
  void run(const std::function<void()>& step);

  const DeviceGroup& group_;
  int device_ = 0;
  Step step_ = Step::kDone;
  StatusAgreement agreement_;
  std::string problem_;      // of this rank; empty: none
  bool has_failed_ = false;  // an error of CUDA was its problem
  std::unique_ptr<IpcTrial> trial_;
  IpcPeers peers_;
  std::optional<std::string> obstacle_;
};

}  // namespace hvd
