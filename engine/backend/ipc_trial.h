// A trial of what ranks would exchange over: before any tensor goes that way, each rank copies and
// reduces known numbers out of all ranks' memory, and compares with what the CPU makes of them. A
// GPU or driver that does not do what is expected of it costs speed then, not results.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/device_ipc.h"
#include "backend/plane_collective.h"

namespace hvd {

// The known numbers of a rank, of every dtype.
std::vector<std::byte> trial_numbers(int rank);
// What a rank has to have at the end: all ranks' numbers, and their reductions.
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
