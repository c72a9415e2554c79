// Where partial sums and results of an allreduce lie on this rank: in its tensors, or, for an
// absent rank, in spare memory, which a chunk takes over from the one kChunks before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/cluster_cut.h"
#include "collective/views.h"

namespace hvd {

class Landing {
 public:
  static constexpr std::uint32_t kChunks = kChunksAhead + 1;

  // `views` outlives the run.
  void begin(const ViewList& views, const ClusterCut& cut);

  bool has_spare() const { return has_spare_; }

  // Of the byte `at` of `view`, which stands at `stream`.
  std::byte* place(const View& view, std::size_t at, std::size_t stream) {
    return view.out != nullptr ? view.out + at : spare_.data() + stream % spare_.size();
  }

 private:
  bool has_spare_ = false;
  std::vector<std::byte> spare_;
};

}  // namespace hvd
