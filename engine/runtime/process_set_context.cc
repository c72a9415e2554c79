#include "runtime/process_set_context.h"

#include <algorithm>
#include <utility>

#include "backend/cluster_backend.h"
#include "backend/device_backend.h"
#include "backend/external_backend.h"
#include "backend/host_backend.h"
#include "control/tree.h"

namespace hvd {

std::size_t ProcessSetContext::region_bytes(int size) {
  return NegotiationTable::region_bytes(size) + Peers::region_bytes(size);
}

namespace {

int set_rank_in(const std::vector<int>& members, int world_rank) {
  const auto at = std::ranges::lower_bound(members, world_rank);
  return at == members.end() || *at != world_rank ? -1 : static_cast<int>(at - members.begin());
}

// Set ranks of a host and of all hosts below it in the tree.
std::vector<int> ranks_below(const HostMap& map, int host) {
  std::vector<int> ranks;
  for (const int below : tree_below(host, map.host_count())) {
    const auto& there = map.hosts[static_cast<std::size_t>(below)];
    ranks.insert(ranks.end(), there.begin(), there.end());
  }
  std::ranges::sort(ranks);
  return ranks;
}

NegotiationConfig negotiation_config(const ProcessSetConfig& config, int rank) {
  NegotiationConfig negotiation = config.negotiation;
  negotiation.rank = rank;
  negotiation.size = static_cast<int>(config.members.size());
  negotiation.members = config.members;
  negotiation.local = config.hosts.hosts[static_cast<std::size_t>(config.hosts.own)];
  negotiation.collected = ranks_below(config.hosts, config.hosts.own);
  negotiation.is_root = config.hosts.own == 0;
  return negotiation;
}

std::vector<int> world_ranks(const std::vector<int>& members, const std::vector<int>& set_ranks) {
  std::vector<int> ranks;
  for (const int rank : set_ranks) ranks.push_back(members[static_cast<std::size_t>(rank)]);
  return ranks;
}

int index_in(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

std::unique_ptr<Relay> make_relay(NegotiationTable& negotiation, const HostMap& map,
                                  SetLinks& links) {
  if (links.control.empty()) return nullptr;
  std::optional<MessageLink> parent;
  std::vector<Relay::Child> children;
  for (const LeaderLink& link : std::exchange(links.control, {})) {
    MessageLink messages(link.fd, map.hosts[static_cast<std::size_t>(link.host)][0], link.seals,
                         "control link");
    if (link.host == tree_parent(map.own)) {
      parent.emplace(std::move(messages));
    } else {
      const bool is_leaf = tree_children(link.host, map.host_count()).empty();
      children.push_back({std::move(messages), ranks_below(map, link.host), is_leaf});
    }
  }
  return std::make_unique<Relay>(negotiation, std::move(parent), std::move(children));
}

std::unique_ptr<Backend> make_backend(Peers& peers, const HostMap& map, int rank, int size,
                                      SetLinks& links) {
  if (links.data_plane != nullptr) {
    const Place place{.rank = rank, .size = size};
    return std::make_unique<ExternalBackend>(peers, place, links.data_plane);
  }
  if (map.host_count() == 1) return std::make_unique<HostBackend>(peers);
  return std::make_unique<ClusterBackend>(peers, map, rank, size, std::exchange(links.data, {}));
}

std::unique_ptr<Backend> with_devices(std::unique_ptr<Backend> host, const ProcessSetConfig& config,
                                      int rank) {
  if (config.devices.gpus == nullptr) return host;
  const Place place{.rank = rank, .size = static_cast<int>(config.members.size())};
  const auto say = [log_config = config.log](const std::string& text) {
    log(log_config, LogLevel::kWarning, text);
  };
  DevicePlane plane = config.devices;
  plane.config.is_one_host = config.hosts.host_count() == 1;
  return std::make_unique<DeviceBackend>(std::move(host), std::move(plane), place, config.hosts,
                                         config.names, say);
}

}  // namespace

HostMap hosts_of_set(const std::vector<std::vector<int>>& hosts, const std::vector<int>& members,
                     int rank) {
  HostMap map;
  for (const std::vector<int>& host : hosts) {
    std::vector<int> here;
    for (const int world_rank : host) {
      if (const int member = set_rank_in(members, world_rank); member >= 0) here.push_back(member);
    }
    if (std::ranges::find(here, rank) != here.end()) map.own = map.host_count();
    if (!here.empty()) map.hosts.push_back(std::move(here));
  }
  return map;
}

ProcessSetContext::ProcessSetContext(ProcessSetConfig config, std::shared_ptr<Region> region,
                                     const Presence& presence, SetLinks links)
    : id(config.id),
      members(config.members),
      rank(set_rank_in(members, presence.rank())),
      hosts(config.hosts),
      local(world_ranks(members, hosts.hosts[static_cast<std::size_t>(hosts.own)])),
      region(std::move(region)),
      negotiation(this->region->data(), negotiation_config(config, rank)),
      peers(this->region->data() + NegotiationTable::region_bytes(size()),
            index_in(local, presence.rank()), static_cast<int>(local.size())),
      data_plane(links.data_plane),
      backend(with_devices(make_backend(peers, hosts, rank, size(), links), config, rank)),
      relay(make_relay(negotiation, hosts, links)),
      running_numbers(2 * kKindCount + 1, 0) {
  peers.connect(presence, local);
}

int ProcessSetContext::awaited(const PeerWait& wait) const {
  if (wait.is_polled) return members[static_cast<std::size_t>(rank)];
  return wait.rank >= 0 ? local[static_cast<std::size_t>(wait.rank)]
                        : members[static_cast<std::size_t>(wait.remote)];
}

void ProcessSetContext::close_copies() {
  if (relay != nullptr) relay->close_copies();
  if (backend != nullptr) backend->close_copies();
}

void ProcessSetContext::leave_devices(bool is_well) {
  if (backend == nullptr) return;
  if (is_well) backend->leave();
  backend->abort();
}

void ProcessSetContext::disconnect() {
  if (relay != nullptr) relay->close();  // other threads may be looking at it
  if (spans_hosts()) backend.reset();
}

int ProcessSetContext::set_rank_of(int world_rank) const {
  return set_rank_in(members, world_rank);
}

bool ProcessSetContext::can_progress(bool may_form) const {
  if (relay != nullptr && relay->has_work()) return true;
  if (is_running.load()) {
    if (blocked_on.is_polled) return now_ns() >= look_at_ns;
    return blocked_on.rank >= 0 ? peers.reached(blocked_on) : blocked_on.remote < 0;
  }
  return (may_form && negotiation.has_ready()) || negotiation.has_bucket(cursor);
}

std::string ProcessSetContext::suffix() const {
  return id == 0 ? "" : " of process set " + std::to_string(id);
}

std::string ProcessSetContext::title_of(const Entry& entry) const {
  return is_numbered_name(entry.name) ? entry.name : entry.title() + suffix();
}

std::uint64_t& ProcessSetContext::running_number(const Request& request, Numbering numbering) {
  if (numbering == Numbering::kOfSet) return running_numbers.back();
  const std::size_t of_kind = 2 * static_cast<std::size_t>(request.kind);
  return running_numbers[of_kind + (request.is_grouped ? 1 : 0)];
}

}  // namespace hvd
