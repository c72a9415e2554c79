// How the ranks of a process set agree to run Adasum on their GPUs, when it is first wanted over
// NCCL: each compiles the kernels and tries them, and all agree on whether all could.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/adasum_trial.h"
#include "backend/status_agreement.h"

namespace hvd {

class AdasumNegotiation {
 public:
  // `group` outlives this.
  explicit AdasumNegotiation(const DeviceGroup& group) : group_(group) {}

  // This rank's GPU is `device`.
  void begin(int device);
  // True at the end, and before the beginning. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  bool has_begun() const { return has_begun_; }
  // Why they cannot; none if they can.
  const std::optional<std::string>& obstacle() const { return obstacle_; }
  std::unique_ptr<AdasumKernels> take_kernels() { return std::move(kernels_); }

 private:
  enum class Step { kTrying, kAgreement, kDone };

  bool is_tried();
  void end();

  const DeviceGroup& group_;
  bool has_begun_ = false;
  Step step_ = Step::kDone;
  std::string problem_;  // of this rank; empty: none
  std::unique_ptr<AdasumKernels> kernels_;
  std::unique_ptr<AdasumTrial> trial_;
  StatusAgreement agreement_;
  std::optional<std::string> obstacle_;
};

}  // namespace hvd
