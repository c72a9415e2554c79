// Who executes buckets: the seam between the runtime and the ways to move data.
#pragma once

#include <poll.h>

#include <cstdint>
#include <span>
#include <vector>

#include "control/request.h"
#include "core/memory.h"
#include "core/tuning.h"
#include "gpu/stream_dependency.h"
#include "transport/peers.h"

namespace hvd {

// One tensor of a bucket on this rank. Ranks are those of the set that runs the bucket. Sizes of
// first dimensions come from here, since the request is this rank's own and others' may differ.
struct Work {
  const Request* request = nullptr;
  const std::byte* in = nullptr;       // null: this rank is absent and gives zeros
  std::byte* out = nullptr;            // null: this rank drops the result
  int root = 0;                        // broadcast: who gives
  std::vector<std::int64_t> rows;      // allgather: first dimension on every rank
  std::vector<std::int64_t> splits;    // alltoall: rows that s gives to d, at s * size + d
  int device = kHostDevice;            // where the addresses are valid
  StreamDependency* flight = nullptr;  // of tensors on a GPU
};

// The rows of `dim0` that rank `owner` gets of a reducescatter, and where they begin.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
RowRange reducescatter_rows(std::int64_t dim0, int owner, int size);

// Runs the buckets of one process set, one at a time. All methods belong to the holder of the
// progress role.
class Backend {
 public:
  virtual ~Backend() = default;

  // Starts a bucket: works of one kind, in the same order on all ranks, which outlive the run, and
  // the same cut.
  virtual void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) = 0;
  // Starts to wait for all ranks to come here.
  virtual void begin_negotiation() = 0;
  // Runs as far as possible, never blocks. True when the bucket is complete, else `blocked` says
  // what must happen first.
  virtual bool advance(PeerWait& blocked) = 0;
  // A rank of this host whose kFinished counter is here has done its part of the bucket.
  virtual BlockNumber end_block() const = 0;
  // How long to wait before the next look, where the last advance() was blocked on nothing that can
  // be waited for.
  virtual Nanoseconds pause() const { return {}; }
  // Descriptors that end the wait of the last advance(), beside its `blocked`.
  virtual void add_polls(std::vector<pollfd>& /*polls*/) const {}
  // Whether devices are still at work for buckets that are complete here. Throws Error when that
  // work has failed.
  virtual bool watch() { return false; }
  // Leaves the other ranks, when all of them may be doing so; waits for devices, not for long.
  virtual void leave() {}
  // Ends what devices do for buckets, so that whoever waits for them goes on.
  virtual void abort() {}
  // In a forked child: closes its copies of this rank's connections, which others would take for
  // signs of life.
  virtual void close_copies() {}
};

}  // namespace hvd
