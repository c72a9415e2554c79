#include "collective/landing.h"

#include <algorithm>

namespace hvd {

void Landing::begin(const ViewList& views, const ClusterCut& cut) {
  has_spare_ = std::ranges::any_of(
      views.views(), [](const View& view) { return view.out == nullptr && view.size_bytes != 0; });
  if (!has_spare_) return;
  // A multiple of the chunk, so that no piece of a chunk goes over its end.
  spare_.resize(cut.chunk_bytes * std::min(cut.chunks, kChunks));
}

}  // namespace hvd
