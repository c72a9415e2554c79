// How ranks of a process set connect over NCCL: their ids go over the backend that moves host
// tensors, they connect without blocking, and hear whether all did. What fails on one rank is known
// to all at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/host_gather.h"
#include "backend/plane_collective.h"
#include "backend/status_agreement.h"
#include "gpu/gpu.h"
#include "gpu/nccl_communicator.h"

namespace hvd {

// This rank's place in a communicator, and who of the set gives the id of it.
struct NcclSeat {
  int giver = 0;
  Place place;
};

class NcclNegotiation {
 public:
  // `names`: of the ranks of the set; `timeout_s`: for NCCL to connect.
  NcclNegotiation(const Gpu& gpu, Backend& host, Place place, std::vector<std::string> names,
                  double timeout_s);

  // A communicator for each seat, on `device`; as many on all ranks.
  void begin(int device, std::vector<NcclSeat> seats);
  // True at the end. `blocked`: of the host backend, or to be polled.
  bool advance(PeerWait& blocked);

  // Why there are none; none if there are.
  const std::optional<std::string>& obstacle() const { return obstacle_; }
  // One for each seat; none with an obstacle.
  std::vector<std::unique_ptr<NcclCommunicator>> take() { return std::move(communicators_); }

 private:
  enum class Step { kIds, kConnecting, kAgreement, kDone };

  void connect();
  bool is_connected();
  void send_status(const std::string& problem);
  void read_statuses();

  const Gpu& gpu_;
  Backend& host_;
  const Place place_;
  const std::vector<std::string> names_;
  const double timeout_s_;
  int device_ = 0;
  std::vector<NcclSeat> seats_;
  Step step_ = Step::kDone;
  HostGather gather_;
  StatusAgreement agreement_;
  std::optional<std::string> obstacle_;
  std::vector<std::unique_ptr<NcclCommunicator>> communicators_;
  std::int64_t deadline_ns_ = 0;
};

}  // namespace hvd
