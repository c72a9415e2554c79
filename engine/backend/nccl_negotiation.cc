#include "backend/nccl_negotiation.h"

#include <algorithm>

#include "core/clock.h"
#include "core/text.h"

namespace hvd {

NcclNegotiation::NcclNegotiation(const Gpu& gpu, Backend& host, Place place,
                                 std::vector<std::string> names, double timeout_s)
    : gpu_(gpu), host_(host), place_(place), names_(std::move(names)), timeout_s_(timeout_s) {}

// Of the ids that a rank gives, those count that it is asked for.
void NcclNegotiation::begin(int device, std::vector<NcclSeat> seats) {
  device_ = device;
  seats_ = std::move(seats);
  std::vector<nccl::UniqueId> ids(seats_.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (seats_[i].giver != place_.rank) continue;
    const auto& function = gpu_.nccl()->functions().get_unique_id;
    gpu_.nccl()->check(function.call(&ids[i]), function.name, nullptr);
  }
  gather_.begin(host_, std::as_bytes(std::span(ids)), place_.size);
  step_ = Step::kIds;
}

bool NcclNegotiation::advance(PeerWait& blocked) {
  while (step_ != Step::kDone) {
    if (step_ == Step::kConnecting) {
      if (!is_connected()) {
        blocked = {.is_polled = true};
        return false;
      }
      continue;
    }
    if (!host_.advance(blocked)) return false;
    if (step_ == Step::kIds) {
      connect();
    } else {
      read_statuses();
    }
  }
  return true;
}

void NcclNegotiation::connect() {
  deadline_ns_ = now_ns() + static_cast<std::int64_t>(timeout_s_ * 1e9);
  try {
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      const auto [giver, place] = seats_[i];
      const auto id =
          read_as<nccl::UniqueId>(gather_.of(giver).subspan(i * sizeof(nccl::UniqueId)));
      communicators_.push_back(std::make_unique<NcclCommunicator>(
          gpu_.driver(), *gpu_.nccl(), device_, id, place.rank, place.size));
    }
    step_ = Step::kConnecting;
  } catch (const Error& error) {
    send_status(error.what());
  }
}

// Or has failed to, which is the next step as well.
bool NcclNegotiation::is_connected() {
  try {
    const auto is_busy = [](const auto& communicator) { return communicator->is_busy(); };
    if (std::ranges::none_of(communicators_, is_busy)) {
      send_status("");
      return true;
    }
    if (now_ns() < deadline_ns_) return false;
    send_status("NCCL has not connected within " + seconds_text(timeout_s_));
  } catch (const Error& error) {
    send_status(error.what());
  }
  return true;
}

void NcclNegotiation::send_status(const std::string& problem) {
  agreement_.send(host_, problem, place_.size);
  step_ = Step::kAgreement;
}

void NcclNegotiation::read_statuses() {
  obstacle_ = agreement_.obstacle(names_);
  if (obstacle_) communicators_.clear();  // which aborts what one of them may still be waiting for
  step_ = Step::kDone;
}

}  // namespace hvd
