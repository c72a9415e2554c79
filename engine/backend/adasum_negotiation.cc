#include "backend/adasum_negotiation.h"

namespace hvd {

void AdasumNegotiation::begin(int device) {
  has_begun_ = true;
  const auto vectors = static_cast<std::size_t>(group_.place.size);
  if (vectors > kMostAdasumVectors) {
    obstacle_ = "there are more than " + std::to_string(kMostAdasumVectors) + " ranks";
    return;
  }
  step_ = Step::kTrying;
  try {
    kernels_ = std::make_unique<AdasumKernels>(group_.gpu.driver(), device, vectors);
    trial_ = std::make_unique<AdasumTrial>(group_.gpu, device, *kernels_, vectors);
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

bool AdasumNegotiation::advance(PeerWait& blocked) {
  if (step_ == Step::kTrying) {
    if (!is_tried()) {
      blocked = {.is_polled = true};
      return false;
    }
    agreement_.send(group_.host, problem_, group_.place.size);
    step_ = Step::kAgreement;
  }
  if (step_ == Step::kAgreement) {
    if (!group_.host.advance(blocked)) return false;
    end();
  }
  return true;
}

// True on failure, too: the next step is the same.
bool AdasumNegotiation::is_tried() {
  if (!problem_.empty()) return true;
  try {
    if (!trial_->is_done()) return false;
    if (!trial_->is_right()) problem_ = "this GPU does not combine as the CPU does";
  } catch (const Error& error) {
    problem_ = error.what();
  }
  return true;
}

void AdasumNegotiation::end() {
  step_ = Step::kDone;
  trial_.reset();
  obstacle_ = agreement_.obstacle(group_.names);
  if (obstacle_) kernels_.reset();
}

}  // namespace hvd
