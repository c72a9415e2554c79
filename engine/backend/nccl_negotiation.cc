#include "backend/nccl_negotiation.h"

#include <algorithm>

#include "core/clock.h"
#include "core/text.h"

namespace hvd {

// Every rank sends an id for each communicator. Those of its id_giver count.
void NcclNegotiation::begin(int device, std::vector<NcclMembership> memberships) {
  device_ = device;
  memberships_ = std::move(memberships);
  std::vector<nccl::UniqueId> own(memberships_.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (memberships_[i].id_giver != group_.place.rank) continue;
    const auto& function = group_.gpu.nccl()->functions().get_unique_id;
    group_.gpu.nccl()->check(function.call(&own[i]), function.name, nullptr);
  }
  ids_.begin(group_.host, std::as_bytes(std::span(own)), group_.place.size);
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
    if (!group_.host.advance(blocked)) return false;
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
    for (std::size_t i = 0; i < memberships_.size(); ++i) {
      const auto [giver, place] = memberships_[i];
      const auto id = read_as<nccl::UniqueId>(ids_.of(giver).subspan(i * sizeof(nccl::UniqueId)));
      communicators_.push_back(std::make_unique<NcclCommunicator>(
          group_.gpu.driver(), *group_.gpu.nccl(), device_, id, place.rank, place.size));
    }
    step_ = Step::kConnecting;
  } catch (const Error& error) {
    send_status(error.what());
  }
}

// True on failure, too: the next step is the same.
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
  agreement_.send(group_.host, problem, group_.place.size);
  step_ = Step::kAgreement;
}

void NcclNegotiation::read_statuses() {
  obstacle_ = agreement_.obstacle(group_.names);
  if (obstacle_) communicators_.clear();  // aborts calls that are still in progress
  step_ = Step::kDone;
}

}  // namespace hvd
