#include "backend/adasum_negotiation.h"

namespace hvd {

AdasumNegotiation::AdasumNegotiation(Gpu& gpu, Backend& host, Place place,
                                     std::vector<std::string> names)
    : gpu_(gpu), host_(host), place_(place), names_(std::move(names)) {}

void AdasumNegotiation::begin(int device) {
  has_begun_ = true;
  const auto vectors = static_cast<std::size_t>(place_.size);
  if (vectors > kMostAdasumVectors) {
    obstacle_ = "there are more than " + std::to_string(kMostAdasumVectors) + " ranks";
    return;
  }
  step_ = Step::kTrying;
  try {
    kernels_ = std::make_unique<AdasumKernels>(gpu_.driver(), device, vectors);
    trial_ = std::make_unique<AdasumTrial>(gpu_, device, *kernels_, vectors);
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
    agreement_.send(host_, problem_, place_.size);
    step_ = Step::kAgreement;
  }
  if (step_ == Step::kAgreement) {
    if (!host_.advance(blocked)) return false;
    end();
  }
  return true;
}

// Or has a problem, which is the next step as well.
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
  obstacle_ = agreement_.obstacle(names_);
  if (obstacle_) kernels_.reset();
}

}  // namespace hvd
