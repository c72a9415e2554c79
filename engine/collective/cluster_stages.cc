#include "collective/cluster_stages.h"

namespace hvd {

bool ClusterStages::advance(PeerWait& blocked) {
  for (;;) {
    blocked = {};
    const std::uint32_t steps_before = steps();
    const bool has_used_all = StageAhead::advance(blocked);
    bool has_moved = exchange();
    has_moved |= links_.pump();
    if (has_used_all && has_posted_all() && links_.is_idle()) return true;
    if (has_moved || steps() != steps_before) continue;
    blocked.remote = links_.awaited();
    return false;
  }
}

}  // namespace hvd
