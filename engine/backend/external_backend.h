// Runs buckets over a carrier: picks the calls that make up a collective, starts each when the one
// before it is complete.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/carried.h"
#include "core/clock.h"

namespace hvd {

class ExternalBackend final : public Backend {
 public:
  // `place`: in the set; `peers`: its members on this host.
  ExternalBackend(Peers& peers, Place place, std::shared_ptr<Carrier> carrier);

  void begin(Kind kind, std::span<const Work> works, const AllreduceCut& cut) override;
  void begin_negotiation() override;
  bool advance(PeerWait& blocked) override;
  BlockNumber end_block() const override { return buckets_; }
  // Grows with the age of the call, so that a short one ends soon and a long one costs little.
  Nanoseconds pause() const override;

 private:
  void add_allreduces(std::span<const Work> works);
  void add_broadcast(std::span<const Work> works);
  void add_allgather(std::span<const Work> works);
  void add_alltoall(const Work& work);
  void add_reducescatter(std::span<const Work> works);
  bool start_next();

  template <typename Collective, typename... Arguments>
  void add(Arguments&&... arguments) {
    queue_.push_back(std::make_unique<Collective>(std::forward<Arguments>(arguments)...));
  }

  Peers& peers_;
  const std::shared_ptr<Carrier> carrier_;
  const Place place_;
  Scratch scratch_;
  std::vector<std::unique_ptr<Carried>> queue_;  // of the bucket
  std::size_t position_ = 0;
  bool is_called_ = false;  // a call is under way
  std::int64_t called_ns_ = 0;
  BlockNumber buckets_ = 0;  // begun; the blocks of this backend
};

}  // namespace hvd
