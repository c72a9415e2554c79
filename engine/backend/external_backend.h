// Runs buckets over a data plane: picks the calls that make up a collective, and starts each when
// the one before it is complete.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/plane_collective.h"
#include "core/clock.h"

namespace hvd {

class ExternalBackend final : public CollectiveBackend {
 public:
  // `place`: of this rank in the set; `peers`: the set's members on this host.
  ExternalBackend(Peers& peers, Place place, std::shared_ptr<DataPlane> plane);

  void begin_barrier() override;
  bool advance(PeerWait& blocked) override;
  BlockNumber end_block() const override { return buckets_; }
  // Grows with the age of the call. A short call is checked often; a long call needs few checks.
  Nanoseconds pause() const override;

 private:
  void clear() override;
  void begin_allreduce(std::span<const Work> works, const AllreduceCut& cut) override;
  void begin_allgather(std::span<const Work> works) override;
  void begin_broadcast(std::span<const Work> works) override;
  void begin_alltoall(std::span<const Work> works) override;
  void begin_reducescatter(std::span<const Work> works) override;

  void add_alltoall(const Work& work);
  bool start_next();

  template <typename Step, typename... Arguments>
  void add(Arguments&&... arguments) {
    queue_.push_back(std::make_unique<Step>(std::forward<Arguments>(arguments)...));
  }

  Peers& peers_;
  const std::shared_ptr<DataPlane> plane_;
  const Place place_;
  Scratch scratch_;
  std::vector<std::unique_ptr<PlaneCollective>> queue_;  // of the bucket
  std::size_t position_ = 0;
  bool is_called_ = false;  // a call is under way
  std::int64_t called_ns_ = 0;
  BlockNumber buckets_ = 0;  // begun; the blocks of this backend
};

}  // namespace hvd
