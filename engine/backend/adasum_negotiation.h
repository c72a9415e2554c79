// How the ranks of a process set agree to combine on their GPUs, when Adasum over NCCL is first
// wanted: each translates the kernels and tries them, and all hear whether all could.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/adasum_trial.h"
#include "backend/plane_collective.h"
#include "backend/status_agreement.h"

namespace hvd {

class AdasumNegotiation {
 public:
  // `names`: of the ranks of the set.
  AdasumNegotiation(Gpu& gpu, Backend& host, Place place, std::vector<std::string> names);

  // This rank's GPU is `device`.
  void begin(int device);
  // True at the end, and before the beginning. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  bool has_begun() const { return has_begun_; }
  // Why not; none if they can.
  const std::optional<std::string>& obstacle() const { return obstacle_; }
  std::unique_ptr<AdasumKernels> take_kernels() { return std::move(kernels_); }

 private:
  enum class Step { kTrying, kAgreement, kDone };

  bool is_tried();
  void end();

  Gpu& gpu_;
  Backend& host_;
  const Place place_;
  const std::vector<std::string> names_;
  bool has_begun_ = false;
  Step step_ = Step::kDone;
  std::string problem_;  // of this rank; empty: none
  std::unique_ptr<AdasumKernels> kernels_;
  std::unique_ptr<AdasumTrial> trial_;
  StatusAgreement agreement_;
  std::optional<std::string> obstacle_;
};

}  // namespace hvd
