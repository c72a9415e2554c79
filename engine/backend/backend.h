// The seam between the runtime and the ways to move data: a backend runs the buckets of a set.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/work.h"
#include "collective/algorithm.h"
#include "core/clock.h"
#include "core/tuning.h"
#include "transport/peers.h"

namespace hvd {

// How long to wait before the next check of another library or a device: an eighth of the time
// since `since_ns`.
inline Nanoseconds pause_after(std::int64_t since_ns) {
  return std::clamp<Nanoseconds>(Nanoseconds((now_ns() - since_ns) / 8),
                                 std::chrono::microseconds(2), std::chrono::microseconds(200));
}

// Runs the buckets of one process set, one at a time. All methods belong to the holder of the
// progress role.
class Backend {
 public:
  virtual ~Backend() = default;

  // Starts a bucket: works of one kind. All ranks have the same order and the same cut. The works
  // outlive the run.
  virtual void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) = 0;
  // Starts a barrier of all ranks.
  virtual void begin_barrier() = 0;
  // Runs as far as possible, never blocks. True when the bucket is complete, else `blocked` says
  // what must happen first.
  virtual bool advance(PeerWait& blocked) = 0;
  // When the kFinished counter of a rank of this host is here, that rank has done its part.
  virtual BlockNumber end_block() const = 0;
  // How long to wait before the next look, if the last advance() was blocked on something that
  // rings no doorbell.
  virtual Nanoseconds pause() const { return {}; }
  // Adds descriptors that end the wait of the last advance(), in addition to its `blocked`.
  virtual void add_polls(std::vector<pollfd>& /*polls*/) const {}
  // Bytes of tensors that were sent to other hosts so far; 0 where another library sends them.
  virtual std::uint64_t link_bytes() const { return 0; }
  // Whether devices are still at work for buckets that are complete here. Throws Error when that
  // work has failed.
  virtual bool watch() { return false; }
  // Whether buckets may start kernels that wait for those of other ranks.
  virtual bool launches() const { return false; }
  // Leaves the other ranks. They may be leaving, too. Waits for devices, but not for long.
  virtual void leave() {}
  // Ends the devices' work for buckets, so that waits for it end.
  virtual void abort() {}
  // In a forked child: closes its copies of this rank's connections. While they are open, other
  // ranks would not notice the death of this rank.
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

// A backend that runs one of the engine's own algorithms at a time.
class AlgorithmBackend : public CollectiveBackend {
 public:
  bool advance(PeerWait& blocked) override {
    return running_ == nullptr || running_->advance(blocked);
  }
  BlockNumber end_block() const override { return next_block_; }

 protected:
  // Begins an algorithm; its begin() returns how many block numbers it takes.
  template <typename Running, typename... Arguments>
  void run(Running& algorithm, const Arguments&... arguments) {
    next_block_ += algorithm.begin(arguments...);
    running_ = &algorithm;
  }

  ViewList views_;
  Algorithm* running_ = nullptr;
  BlockNumber next_block_ = 0;
};

}  // namespace hvd
