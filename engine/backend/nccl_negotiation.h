// How ranks of a process set connect over NCCL. They exchange ids, connect without blocking, and
// agree on whether all have connected. All ranks learn what has failed on one of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/status_agreement.h"
#include "gpu/nccl_communicator.h"

namespace hvd {

// This rank's place in a communicator, and the rank of the set that gives the communicator's id.
struct NcclMembership {
  int id_giver = 0;
  Place place;
};

class NcclNegotiation {
 public:
  // `group` outlives this; `timeout_s`: for NCCL to connect.
  NcclNegotiation(const DeviceGroup& group, double timeout_s)
      : group_(group), timeout_s_(timeout_s) {}

  // A communicator for each membership, on `device`; as many on all ranks.
  void begin(int device, std::vector<NcclMembership> memberships);
  // True at the end. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  // Why there are no communicators; none if there are.
  const std::optional<std::string>& obstacle() const { return obstacle_; }
  // One for each membership; none with an obstacle.
  std::vector<std::unique_ptr<NcclCommunicator>> take() { return std::move(communicators_); }

 private:
  enum class Step { kIds, kConnecting, kAgreement, kDone };

  void connect();
  bool is_connected();
  void send_status(const std::string& problem);
  void read_statuses();

  const DeviceGroup& group_;
  const double timeout_s_;
  int device_ = 0;
  std::vector<NcclMembership> memberships_;
  Step step_ = Step::kDone;
  HostAllgather ids_;
  StatusAgreement agreement_;
  std::optional<std::string> obstacle_;
  std::vector<std::unique_ptr<NcclCommunicator>> communicators_;
  std::int64_t deadline_ns_ = 0;
};

}  // namespace hvd
