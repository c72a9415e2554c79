// A trial of CUDA IPC before any tensor is exchanged: each rank copies and reduces known numbers
// out of all ranks' memory, and compares the results with the CPU's. So a GPU or a driver that is
// wrong costs speed, not results.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/device_ipc.h"
#include "backend/plane_collective.h"

namespace hvd {

// The known numbers of a rank, of every dtype.
std::vector<std::byte> trial_numbers(int rank);
// The expected results of a rank: all ranks' numbers, and their reductions.
std::vector<std::byte> trial_results(int size);

class IpcTrial {
 public:
  IpcTrial(Gpu& gpu, int device, Place place);

  // Puts this rank's numbers into its memory; is_done() when they are there.
  void show(const IpcMemory& own);
  // Takes them from all; is_done() when is_right() may be asked.
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

}  // namespace hvd
