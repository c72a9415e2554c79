// How the ranks of a host open each other's GPU memory if they have no NCCL. Each rank exports
// memory, opens the memory of the others and tries it. Then all agree on whether every rank
// succeeded. If one rank fails, all ranks learn the reason.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "backend/device_ipc.h"
#include "backend/device_negotiation.h"
#include "backend/status_agreement.h"

namespace hvd {

// The known numbers of a rank, of every dtype.
std::vector<std::byte> trial_numbers(int rank);
// The expected results of a rank: all ranks' numbers, and their reductions.
std::vector<std::byte> trial_results(int size);

// A trial of CUDA IPC before any tensor is exchanged: each rank copies and reduces known numbers
// out of all ranks' memory, and compares the results with the CPU's. So a faulty GPU or driver
// costs speed, but gives no wrong results.
class IpcTrial {
 public:
  IpcTrial(Gpu& gpu, int device, Place place);

  // Puts this rank's numbers into its memory; is_done() when they are there.
  void show(const IpcMemory& own);
  // Takes the numbers of all ranks. When is_done(), is_right() has the answer.
  void take(const IpcPeers& peers);
  bool is_done() const { return event_->is_reached(); }
  bool is_right() const;

 private:
  Gpu& gpu_;
  const Place place_;
  const CudaStream stream_;
  PinnedMemory pinned_;
  DeviceBlockPtr block_;
  CudaEventPtr event_;
};

// All ranks of the group are on this host.
class IpcNegotiation : public Negotiation {
 public:
  using Negotiation::Negotiation;
  ~IpcNegotiation();

  // This rank's GPU is `device`; `pass_bytes` as in DeviceConfig.
  void begin(int device, std::size_t pass_bytes);
  IpcPeers take_peers() { return std::move(peers_); }

 private:
  void send_handle();
  void open_all();
  void judge();
  void end();

  int device_ = 0;
  std::unique_ptr<IpcTrial> trial_;
  IpcPeers peers_;
};

}  // namespace hvd
