#include "collective/landing.h"

#include <algorithm>

namespace hvd {

void Landing::begin(const ViewList& views, const ClusterCut& cut) {
  const bool has_all = std::ranges::all_of(
      views.views(), [](const View& view) { return view.out != nullptr || view.size_bytes == 0; });
  if (has_all) return;
  const std::size_t wanted = cut.chunk_bytes * std::min<std::size_t>(cut.chunks, kChunksAhead + 1);
  // A multiple of the chunk, so that no piece of a chunk goes over its end.
  spare_.resize(wanted);
}

}  // namespace hvd
