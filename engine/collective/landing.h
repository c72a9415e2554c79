// Where partial sums and results of an allreduce lie on this rank: in its tensors, or, for an
// absent rank, in memory that the chunks under way share.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/cluster_cut.h"
#include "collective/views.h"

namespace hvd {

class Landing {
 public:
  // `views` outlives the run.
  void begin(const ViewList& views, const ClusterCut& cut);

  // Of the byte `at` of `view`, which stands at `stream`.
  std::byte* place(const View& view, std::size_t at, std::size_t stream) {
    return view.out != nullptr ? view.out + at : spare_.data() + stream % spare_.size();
  }

 private:
  std::vector<std::byte> spare_;
};

}  // namespace hvd
