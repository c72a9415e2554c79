// How ranks of a process set connect over NCCL. They exchange ids, connect without blocking, and
// agree on whether all have connected. If one rank fails, all ranks learn the reason.
#pragma once

#include <cstdint>
#include <memory>
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

class NcclNegotiation : public Negotiation {
 public:
  // `timeout_s`: for NCCL to connect.
  NcclNegotiation(const DeviceGroup& group, double timeout_s)
      : Negotiation(group), timeout_s_(timeout_s) {}

  // A communicator for each membership, on `device`. All ranks have the same number of memberships.
  void begin(int device, std::vector<NcclMembership> memberships);
  // One for each membership; none with an obstacle.
  std::vector<std::unique_ptr<NcclCommunicator>> take() { return std::move(communicators_); }

 private:
  void connect();
  bool is_connected();
  void end();

  const double timeout_s_;
  int device_ = 0;
  std::vector<NcclMembership> memberships_;
  HostAllgather ids_;
  std::vector<std::unique_ptr<NcclCommunicator>> communicators_;
  std::int64_t deadline_ns_ = 0;
};

}  // namespace hvd
