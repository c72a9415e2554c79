#include "runtime/world.h"

#include <algorithm>
#include <utility>

#include "collective/shares.h"
#include "runtime/space_layout.h"
#include "transport/peers.h"

namespace hvd {

static_assert(kLeastBlockKib * 1024 == kLeastBlockBytes);

namespace {

void check_cut(const AllreduceCut& cut) {
  const std::size_t most =
      std::min<std::size_t>(kMostBlockKib, staging_sizes(1).staging_cell_bytes / 1024);
  if (cut.block_kib < kLeastBlockKib || cut.block_kib > most) {
    throw Error(ErrorCode::kInvalidArgument,
                "a block of an allreduce has " + std::to_string(kLeastBlockKib) + " to " +
                    std::to_string(most) + " KiB, not " + std::to_string(cut.block_kib));
  }
  const auto small_kib = std::max(cut.small_kib, cut.small_between_hosts_kib);
  if (small_kib <= kMostSmallKib) return;
  throw Error(ErrorCode::kInvalidArgument, "a small allreduce has at most " +
                                               std::to_string(kMostSmallKib) + " KiB, not " +
                                               std::to_string(small_kib));
}

}  // namespace

void check_tuning(const BucketTuning& tuning) {
  check_cut(tuning.cut);
  if (is_decided(tuning.link_format)) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string("a bucket has no or a low-bit compression, not '") +
                  name_of(tuning.link_format) + "'");
}

EngineConfig completed(EngineConfig config, const std::vector<std::vector<int>>& hosts) {
  check_tuning(config.tuning.bucket);
  config.local_size = config.size;
  for (const std::vector<int>& host : hosts) {
    const bool is_own = std::ranges::find(host, config.rank) != host.end();
    if (is_own) config.local_size = static_cast<int>(host.size());
  }
  // The stall check must also run at the shutdown time.
  if (config.stall_shutdown_time_s > 0) {
    config.stall_check_time_s = std::min(config.stall_check_time_s, config.stall_shutdown_time_s);
  }
  return config;
}

World::World(EngineConfig given, SharedSpace& space, std::vector<std::vector<int>> hosts_of_world,
             std::vector<int> doorbells)
    : config(completed(std::move(given), hosts_of_world)),
      hosts(std::move(hosts_of_world)),
      region(space.map(0, SpaceLayout{config.size}.words_bytes())),
      presence(region->data(), config.rank, config.size, std::move(doorbells)),
      alarms(region->data() + SpaceLayout{config.size}.alarms_offset(), config.size),
      launches(reinterpret_cast<std::atomic<std::uint64_t>*>(
          region->data() + SpaceLayout{config.size}.launches_offset())) {}

bool World::leads_host() const {
  if (!spans_hosts()) return config.rank == 0;
  return std::ranges::any_of(hosts,
                             [this](const auto& host) { return host.front() == config.rank; });
}

std::string World::peer_name(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < config.peer_names.size() ? config.peer_names[index]
                                          : "rank " + std::to_string(rank);
}

std::string World::peer_names(const std::vector<int>& ranks) const {
  std::string names;
  for (const int rank : ranks) names += (names.empty() ? "" : ", ") + peer_name(rank);
  return names;
}

}  // namespace hvd
