#include "runtime/failed_start.h"

#include "control/alarms.h"
#include "runtime/space_layout.h"
#include "transport/presence.h"

namespace hvd {

void report_failed_start(const EngineConfig& config, SharedSpace& space,
                         const std::string& reason) {
  const SpaceLayout layout{config.size};
  const auto region = space.map(0, layout.words_bytes());
  Presence presence(region->data(), config.rank, config.size);
  Alarms alarms(region->data() + layout.alarms_offset(), config.size);
  const std::string& name = config.peer_names.at(static_cast<std::size_t>(config.rank));
  alarms.raise({.code = ErrorCode::kPeerLost,
                .rank = config.rank,
                .text = name + " could not start: " + reason,
                .ranks = {config.rank}});
  presence.set_liveness(config.rank, Liveness::kDead);
  alarms.touch();
  presence.ring_all_doorbells();
}

}  // namespace hvd
