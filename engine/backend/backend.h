// The seam between the runtime and the ways to move data: a backend runs the buckets of a set.
#pragma once

#include <poll.h>

#include <algorithm>
#include <span>
#include <vector>

#include "backend/work.h"
#include "core/clock.h"
#include "core/tuning.h"
#include "transport/peers.h"

namespace hvd {

// How long to wait for other libraries or devices before the next look at them: an eighth of the
// time since `since_ns`.
inline Nanoseconds pause_after(std::int64_t since_ns) {
  return std::clamp<Nanoseconds>(Nanoseconds((now_ns() - since_ns) / 8),
                                 std::chrono::microseconds(2), std::chrono::microseconds(200));
}

// Runs the buckets of one process set, one at a time. All methods belong to the holder of the
// progress role.
class Backend {
 public:
  virtual ~Backend() = default;

  // Starts a bucket: works of one kind, in the same order on all ranks, and the same cut. The works
  // outlive the run.
  virtual void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) = 0;
  // Starts to wait for all ranks to come here.
  virtual void begin_barrier() = 0;
  // Runs as far as possible, never blocks. True when the bucket is complete, else `blocked` says
  // what must happen first.
  virtual bool advance(PeerWait& blocked) = 0;
  // A rank of this host whose kFinished counter is here has done its part of the bucket.
  virtual BlockNumber end_block() const = 0;
  // How long to wait before the next look, if the last advance() was blocked on something that
  // rings no doorbell.
  virtual Nanoseconds pause() const { return {}; }
  // Descriptors that end the wait of the last advance(), beside its `blocked`.
  virtual void add_polls(std::vector<pollfd>& /*polls*/) const {}
  // Whether devices are still at work for buckets that are complete here. Throws Error when that
  // work has failed.
  virtual bool watch() { return false; }
  // Leaves the other ranks, when all of them may be doing so. Waits for devices, not for long.
  virtual void leave() {}
  // Ends what devices do for buckets, so that waits for it end.
  virtual void abort() {}
  // In a forked child: closes its copies of this rank's connections, which other ranks would take
  // for signs of life.
  virtual void close_copies() {}
};

// A backend with one method for each collective that moves data. Each starts a bucket.
class CollectiveBackend : public Backend {
 public:
  void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) final;

 private:
  // Before any of the others.
  virtual void clear() = 0;
  virtual void begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) = 0;
  virtual void begin_allgather(std::span<const Work> works) = 0;
  virtual void begin_broadcast(std::span<const Work> works) = 0;
  virtual void begin_alltoall(std::span<const Work> works) = 0;
  virtual void begin_reducescatter(std::span<const Work> works) = 0;
};

}  // namespace hvd
