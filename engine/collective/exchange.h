// Every rank gives a stream, every rank gets all of them: allgather, and broadcast, where only the
// root's stream has bytes.
//
// Streams are cut into blocks of one staging cell. A rank stages its own and copies the others'
// out; it stages block b + 1 before it copies block b, and nobody waits for a rank that has nothing
// to give. Bytes touched per rank: its own stream twice, all others' twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/collective.h"
#include "collective/views.h"

namespace hvd {

class Exchange final : public Collective {
 public:
  explicit Exchange(Peers& peers);

  // `streams[p]` is the stream of rank p: this rank's views have `in` (and `out`, when the caller
  // wants its own part too), the others' have `out`. All ranks see the same stream sizes. `streams`
  // outlives the run. Returns how many block numbers it takes.
  std::uint32_t begin(const std::vector<ViewList>& streams, BlockNumber first_block);
  bool advance(PeerWait& blocked) override;

 private:
  bool may_stage(std::uint32_t block, PeerWait& blocked) const;
  bool may_copy(std::uint32_t block, PeerWait& blocked) const;
  void stage(std::uint32_t block);
  void copy_out(std::uint32_t block);
  void copy_own();

  bool has_block(int rank, std::uint32_t block) const;

  Peers& peers_;
  const std::vector<ViewList>* streams_ = nullptr;
  BlockNumber first_block_ = 0;
  std::uint32_t blocks_ = 0;
  std::uint32_t staged_ = 0;
  std::uint32_t copied_ = 0;
};

}  // namespace hvd
