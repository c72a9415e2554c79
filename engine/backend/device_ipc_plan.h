// The plan for a bucket that ranks of one host exchange through memory that all of them see: what
// each rank copies where. Pure.
//
// Each rank gives a stream: its parts of the bucket's tensors, one after the other. Every rank
// knows the layout of all streams, so all cut them into the same passes without a message.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/work.h"

namespace hvd {

// A part of this rank's stream.
struct IpcGift {
  const Work* work = nullptr;
  std::size_t at = 0;               // in the stream
  const std::byte* from = nullptr;  // null: zeros
  std::size_t size_bytes = 0;
};

// What this rank takes from the stream of `giver`.
struct IpcTaking {
  static constexpr int kAll = -1;  // reduced from all streams

  const Work* work = nullptr;
  int giver = kAll;
  std::size_t at = 0;
  std::byte* to = nullptr;
  std::size_t size_bytes = 0;
};

struct IpcPlan {
  std::vector<IpcGift> gifts;
  std::vector<IpcTaking> takings;
  std::size_t longest_bytes = 0;  // of all ranks' streams
};

// Works of one kind.
IpcPlan plan_ipc(std::span<const Work> works, Place place);
// Whether the GPU's kernels give the bits that the host's kernels give; the same on all ranks.
bool ipc_runs(const Request& request);

}  // namespace hvd
