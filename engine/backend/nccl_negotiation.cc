#include "backend/nccl_negotiation.h"

#include <algorithm>

#include "core/clock.h"
#include "core/text.h"

namespace hvd {

// Every rank sends an id for each communicator. The id of the communicator's id_giver is used.
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
  after_bucket([this] { connect(); });
}

void NcclNegotiation::connect() {
  deadline_ns_ = now_ns() + static_cast<std::int64_t>(timeout_s_ * 1e9);
  attempt([this] {
    static_cast<void>(group_.gpu.move_kernels(device_));
    for (std::size_t i = 0; i < memberships_.size(); ++i) {
      const auto [giver, place] = memberships_[i];
      const auto id = read_as<nccl::UniqueId>(ids_.of(giver).subspan(i * sizeof(nccl::UniqueId)));
      communicators_.push_back(std::make_unique<NcclCommunicator>(
          group_.gpu.driver(), *group_.gpu.nccl(), device_, id, place.rank, place.size));
    }
  });
  when([this] { return is_connected(); }, [this] { agree([this] { end(); }); });
}

bool NcclNegotiation::is_connected() {
  const auto is_busy = [](const auto& communicator) { return communicator->is_busy(); };
  if (std::ranges::none_of(communicators_, is_busy)) return true;
  if (now_ns() >= deadline_ns_) {
    problem_ = "NCCL has not connected within " + seconds_text(timeout_s_);
  }
  return false;
}

void NcclNegotiation::end() {
  if (obstacle_) communicators_.clear();  // aborts calls that are still in progress
}

}  // namespace hvd
