// Every rank gives a stream, and every rank takes its parts of all streams: allgather, broadcast
// (only the root's stream has bytes) and alltoall (each part is for one rank).
//
// Streams are cut into blocks of one staging cell. For up to kCells blocks the sender does not
// wait. Smaller blocks were not faster (measured). A rank waits only for blocks with bytes for it.
// Copies per rank: its own stream once into its cells, the bytes from others once out of their
// cells, and the bytes for itself once, directly.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/stage_ahead.h"
#include "collective/views.h"

namespace hvd {

class Exchange final : public StageAhead {
 public:
  explicit Exchange(Peers& peers) : StageAhead(peers) {}

  // `streams[p]`: the data from rank p to others. This rank's views have `in`. The others' views
  // have `out` if the bytes are for this rank. All ranks see the same stream sizes. `own`: the data
  // from this rank to itself, from `in` to `out`. Other ranks do not see it, and it may differ
  // between ranks. Both outlive the run. Returns how many block numbers it takes.
  std::uint32_t begin(const std::vector<ViewList>& streams, const ViewList& own,
                      BlockNumber first_block);

 private:
  void stage(std::uint32_t block) override;
  bool wants(int rank, std::uint32_t block) const override;
  void use(std::uint32_t block) override;

  Range range_of(std::uint32_t block, const ViewList& stream) const;

  const std::vector<ViewList>* streams_ = nullptr;
  const ViewList* own_ = nullptr;
  std::size_t block_bytes_ = 0;
};

}  // namespace hvd
