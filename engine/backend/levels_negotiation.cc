#include "backend/levels_negotiation.h"

#include <algorithm>
#include <utility>

namespace hvd {

std::optional<std::string> levels_obstacle(const HostMap& hosts) {
  const auto [least, most] = std::ranges::minmax(hosts.hosts, {}, &std::vector<int>::size);
  if (least.size() == most.size()) return std::nullopt;
  return "hosts have from " + std::to_string(least.size()) + " to " + std::to_string(most.size()) +
         " ranks";
}

bool has_one_level(const HostMap& hosts) {
  return hosts.host_count() == 1 || static_cast<int>(hosts.rank_count()) == hosts.host_count();
}

void LevelsNegotiation::begin(const DeviceChannels& channels) {
  has_begun_ = true;
  channels_ = &channels;
  const HostMap& hosts = levels_.hosts();
  obstacle_ = levels_obstacle(hosts);
  if (obstacle_ || has_one_level(hosts)) return;
  const auto own_host = static_cast<std::size_t>(hosts.own);
  const auto local_rank = static_cast<std::size_t>(levels_.local().rank);
  std::vector<NcclMembership> memberships;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    memberships.push_back({.id_giver = hosts.hosts[own_host].front(), .place = levels_.local()});
    memberships.push_back({.id_giver = hosts.hosts.front()[local_rank], .place = levels_.cross()});
  }
  connection_.begin(channels.front()->stream.device(), std::move(memberships));
  is_connecting_ = true;
}

bool LevelsNegotiation::advance(PeerWait& blocked) {
  if (!is_connecting_) return true;
  if (!connection_.advance(blocked)) return false;
  is_connecting_ = false;
  obstacle_ = connection_.obstacle();
  if (obstacle_) return true;
  auto communicators = connection_.take();
  for (std::size_t i = 0; i < channels_->size(); ++i) {
    (*channels_)[i]->local = std::move(communicators[2 * i]);
    (*channels_)[i]->cross = std::move(communicators[2 * i + 1]);
  }
  are_connected_ = true;
  return true;
}

}  // namespace hvd
