// GPU tensors through host memory: copied to pinned memory, run by the backend for host tensors,
// and copied back.
//
// A bucket is cut into passes of a few MiB. While one pass runs, the next is copied in and the one
// before is copied out. Between passes the CPU checks whether copies have ended. It does not wait
// for them.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/work.h"

namespace hvd {

// A tensor, or a piece of one, in a pass.
struct StagedPart {
  const Work* work = nullptr;
  Request request;                  // of the piece
  const std::byte* from = nullptr;  // null: this rank gives nothing, or zeros
  std::size_t from_bytes = 0;
  std::byte* to = nullptr;  // null: this rank drops the result, or has it
  std::size_t to_bytes = 0;
  std::size_t in_at = 0;  // in the pinned memory
  std::size_t out_at = 0;
};

struct StagedPass {
  std::vector<StagedPart> parts;
  std::size_t size_bytes = 0;
};

// Pure. The same number of passes on all ranks. Works of one kind.
std::vector<StagedPass> plan_passes(Kind kind, std::span<const Work> works, Place place,
                                    std::size_t pass_bytes);

class DeviceStaging {
 public:
  static constexpr std::size_t kPassBytes = 8UL << 20;

  // `host`: the backend for host tensors of the set.
  DeviceStaging(Gpu& gpu, Backend& host, Place place);

  // `device`: of most tensors. Others are copied on their own GPU.
  void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut, int device);
  // True when the last copy is in the stream; the event behind it is done().
  bool advance(PeerWait& blocked);
  const CudaEventPtr& done() const { return done_; }

 private:
  // Pinned memory of a pass, and when it is full and empty again.
  struct Slot {
    std::unique_ptr<PinnedMemory> memory;
    CudaEventPtr filled;
    CudaEventPtr drained;
  };

  bool fill(std::size_t index);
  void run(StagedPass& pass);
  void drain(const StagedPass& pass);
  template <typename Copy>
  void copy_in_order(CudaStream& stream, int device, Copy&& copy);
  Slot& slot_of(std::size_t index) { return slots_[index % slots_.size()]; }

  Gpu& gpu_;
  Backend& host_;
  const Place place_;
  std::unique_ptr<CudaStream> in_;
  std::unique_ptr<CudaStream> out_;
  std::map<int, CudaStream> others_;  // by GPU, for tensors that are not on the first one's
  std::array<Slot, 3> slots_;
  Kind kind_ = Kind::kAllreduce;
  AllreduceCut cut_;
  std::vector<StagedPass> passes_;
  std::vector<Work> works_;  // of the pass that runs
  std::size_t filled_ = 0;   // passes
  std::size_t drained_ = 0;
  bool is_running_ = false;
  CudaEventPtr done_;
};

}  // namespace hvd
