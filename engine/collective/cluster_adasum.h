// Adasum over several hosts, for any number of ranks on each: the combination of
// collective/adasum.h, from the dot products of all ranks' tensors.
//
// Tensors are cut into tiles, which the ranks take in turn. For one piece of the bucket after the
// other, every rank gets its tiles of all ranks' tensors and adds up their dot products, in double.
// A sum over all ranks makes them complete. Then one allreduce with weights gives the result: a
// weighted sum in each host, and the sum of these. So each rank's tensors cross the links once more
// than in an allreduce. Extra memory: two pieces.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/cluster_allreduce.h"
#include "collective/cluster_alltoall.h"
#include "collective/cluster_exchange.h"
#include "collective/views.h"

namespace hvd {

class ClusterAdasum final : public Algorithm {
 public:
  // `allreduce` and `exchange` are used while this runs.
  ClusterAdasum(const HostMap& map, Links& links, OwnPlace own, ClusterAllreduce& allreduce,
                ClusterExchange& exchange);

  // Starts on `views`, which outlive the run. All have floating dtypes. It takes block numbers from
  // `next_block` as it goes, which outlives the run, too.
  void begin(const ViewList& views, BlockNumber& next_block);
  bool advance(PeerWait& blocked) override;
  // Whether it will take further block numbers.
  bool wants_blocks() const {
    return phase_ == Phase::kDots || (phase_ == Phase::kSum && weighted_.size_bytes() != 0);
  }

 private:
  enum class Phase { kDots, kSum, kApply };
  class Tiles;

  void begin_piece();
  void add_dots();
  void begin_sum();
  void begin_apply();
  // The part of the bucket that is under way.
  Range piece() const;

  const HostMap& map_;
  Links& links_;
  const OwnPlace own_;
  const std::size_t size_;  // of the set
  ClusterAllreduce& allreduce_;
  ClusterExchange& exchange_;
  ViewList tiled_;
  ViewList weighted_;
  ViewList gram_view_;
  std::vector<double> grams_;        // by view
  std::vector<double> weights_;      // by view, by member of this host
  std::vector<std::byte> gathered_;  // the piece's tiles that this rank takes: by tile, by rank
  std::vector<const std::byte*> sources_;
  std::size_t piece_begin_ = 0;
  BlockNumber* next_block_ = nullptr;
  Phase phase_ = Phase::kDots;
};

}  // namespace hvd
