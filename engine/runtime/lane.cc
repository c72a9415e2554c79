#include "runtime/lane.h"

#include <algorithm>
#include <utility>

#include "backend/external_backend.h"
#include "backend/host_backend.h"

namespace hvd {

namespace {

std::unique_ptr<Backend> make_backend(Peers& peers, std::shared_ptr<Carrier> carrier) {
  if (carrier == nullptr) return std::make_unique<HostBackend>(peers);
  return std::make_unique<ExternalBackend>(peers, std::move(carrier));
}

}  // namespace

std::size_t Lane::region_bytes(int size) {
  return Board::region_bytes(size) + Peers::region_bytes(size);
}

Lane::Lane(LaneConfig config, std::shared_ptr<Region> region, const Presence& presence)
    : id(config.id),
      members(std::move(config.members)),
      region(std::move(region)),
      board(this->region->data(), std::move(config.board)),
      peers(this->region->data() + Board::region_bytes(size()), set_rank_of(presence.rank()),
            size()),
      backend(make_backend(peers, std::move(config.carrier))),
      auto_names(2 * kKindCount, 0) {
  peers.connect(presence, members);
}

int Lane::set_rank_of(int world_rank) const {
  const auto at = std::ranges::lower_bound(members, world_rank);
  return at == members.end() || *at != world_rank ? -1 : static_cast<int>(at - members.begin());
}

bool Lane::can_progress(bool may_form) const {
  if (is_running.load() && blocked_on.is_polled) return now_ns() >= look_at_ns;
  if (is_running.load()) return blocked_on.rank < 0 || peers.reached(blocked_on);
  return (may_form && board.has_ready()) || board.has_bucket(cursor);
}

std::string Lane::suffix() const { return id == 0 ? "" : " of process set " + std::to_string(id); }

std::uint64_t& Lane::auto_name(const Request& request) {
  return auto_names[2 * static_cast<std::size_t>(request.kind) + (request.is_grouped ? 1 : 0)];
}

}  // namespace hvd
