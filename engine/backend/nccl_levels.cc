#include "backend/nccl_levels.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hvd {

namespace {

// A rank's rows in the result of an allgather.
struct RankRows {
  std::byte* data;
  std::size_t size_bytes;
};

RankRows rows_of(const NcclCall& call, int rank) {
  const auto& rows = call.work->rows;
  const Request& request = *call.work->request;
  const std::int64_t before = std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
  return {.data = at_offset(call.out, bytes_of_rows(request, before)),
          .size_bytes = bytes_of_rows(request, rows[static_cast<std::size_t>(rank)])};
}

}  // namespace

NcclLevels::NcclLevels(HostMap hosts, int rank) : hosts_(std::move(hosts)) {
  const auto& host = hosts_.hosts[hosts_.own];
  local_rank_ = static_cast<int>(std::ranges::find(host, rank) - host.begin());
}

NcclCommunicator& NcclLevels::communicator(Kind kind, int step, const DeviceChannel& channel) {
  const bool is_cross = kind == Kind::kAllreduce ? step == 1 : step == 0;
  return is_cross ? *channel.cross : *channel.local;
}

void NcclLevels::start_allgather(int step, const NcclCall& call,
                                 const DeviceChannel& channel) const {
  if (step == 0) return gather_over_hosts(call, channel);
  gather_on_host(call, channel);
}

void NcclLevels::start_allreduce(int step, const NcclReduction& reduction,
                                 const DeviceChannel& channel) const {
  if (step == 0) return reduce_on_host(reduction, channel);
  if (step == 1) return reduce_over_hosts(reduction, channel);
  share_on_host(reduction, channel);
}

NcclLevels::Shares NcclLevels::shares_of(const NcclReduction& reduction) const {
  const auto ranks = static_cast<std::size_t>(hosts_.own_members());
  return {.count = reduction.count / ranks, .rest = reduction.count % ranks};
}

void NcclLevels::reduce_on_host(const NcclReduction& reduction,
                                const DeviceChannel& channel) const {
  const NcclCommunicator& nccl = *channel.local;
  const cuda::Stream stream = channel.stream.get();
  const auto [in, out, _, dtype, op] = reduction;
  const nccl::DataType type = nccl_type_of(dtype);
  const auto [count, rest] = shares_of(reduction);
  const std::size_t share_bytes = count * size_of(dtype);
  if (count != 0) {
    nccl.start(stream, nccl.functions().reduce_scatter, in,
               out + share_bytes * static_cast<std::size_t>(local_rank_), count, type, op);
  }
  if (rest != 0) {
    const std::size_t at = share_bytes * static_cast<std::size_t>(local().size);
    nccl.start(stream, nccl.functions().reduce, in + at, out + at, rest, type, op,
               local().size - 1);
  }
}

// The rest follows the last rank's share.
void NcclLevels::reduce_over_hosts(const NcclReduction& reduction,
                                   const DeviceChannel& channel) const {
  const NcclCommunicator& nccl = *channel.cross;
  const auto [count, rest] = shares_of(reduction);
  const std::size_t own = local_rank_ == local().size - 1 ? count + rest : count;
  if (own == 0) return;
  std::byte* const share =
      reduction.out + count * size_of(reduction.dtype) * static_cast<std::size_t>(local_rank_);
  nccl.start(channel.stream.get(), nccl.functions().all_reduce, share, share, own,
             nccl_type_of(reduction.dtype), reduction.op);
}

void NcclLevels::share_on_host(const NcclReduction& reduction, const DeviceChannel& channel) const {
  const NcclCommunicator& nccl = *channel.local;
  const auto [count, rest] = shares_of(reduction);
  const std::size_t share_bytes = count * size_of(reduction.dtype);
  if (count != 0) {
    nccl.allgather(reduction.out + share_bytes * static_cast<std::size_t>(local_rank_),
                   reduction.out, share_bytes, channel.stream.get());
  }
  std::byte* const behind = reduction.out + share_bytes * static_cast<std::size_t>(local().size);
  nccl.broadcast(behind, behind, rest * size_of(reduction.dtype), local().size - 1,
                 channel.stream.get());
}

// Sends each rank's rows to their place. One allgather cannot do it: the places are not next to
// each other.
void NcclLevels::gather_over_hosts(const NcclCall& call, const DeviceChannel& channel) const {
  for (int host = 0; host < hosts_.host_count(); ++host) {
    const RankRows rows = rows_of(call, hosts_.hosts[host][local_rank_]);
    channel.cross->broadcast(call.in, rows.data, rows.size_bytes, host, channel.stream.get());
  }
}

void NcclLevels::gather_on_host(const NcclCall& call, const DeviceChannel& channel) const {
  const NcclCommunicator& nccl = *channel.local;
  for (int host = 0; host < hosts_.host_count(); ++host) {
    const std::vector<int>& ranks = hosts_.hosts[host];
    if (is_one_piece(host, call.work->rows)) {
      const RankRows own = rows_of(call, ranks[local_rank_]);
      if (own.size_bytes == 0) continue;
      nccl.allgather(own.data, rows_of(call, ranks.front()).data, own.size_bytes,
                     channel.stream.get());
      continue;
    }
    for (int member = 0; member < local().size; ++member) {
      const RankRows rows = rows_of(call, ranks[member]);
      nccl.broadcast(rows.data, rows.data, rows.size_bytes, member, channel.stream.get());
    }
  }
}

// Whether the host's ranks follow one another and give the same number of rows.
bool NcclLevels::is_one_piece(int host, const std::vector<std::int64_t>& rows) const {
  const std::vector<int>& ranks = hosts_.hosts[host];
  return std::ranges::all_of(ranks, [&](const int& rank) {
    return rank == ranks.front() + (&rank - ranks.data()) && rows[rank] == rows[ranks.front()];
  });
}

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
  const HostMap& hosts = levels_.hosts();
  obstacle_ = levels_obstacle(hosts);
  if (obstacle_ || has_one_level(hosts)) return;
  const int local_rank = levels_.local().rank;
  std::vector<NcclMembership> memberships;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    memberships.push_back({.id_giver = hosts.hosts[hosts.own].front(), .place = levels_.local()});
    memberships.push_back({.id_giver = hosts.hosts.front()[local_rank], .place = levels_.cross()});
  }
  connection_.begin(channels.front()->stream.device(), std::move(memberships));
  after(connection_, [this, &channels] { end(channels); });
}

void LevelsNegotiation::end(const DeviceChannels& channels) {
  obstacle_ = connection_.obstacle();
  if (obstacle_) return;
  auto communicators = connection_.take();
  for (std::size_t i = 0; i < channels.size(); ++i) {
    channels[i]->local = std::move(communicators[2 * i]);
    channels[i]->cross = std::move(communicators[2 * i + 1]);
  }
  are_connected_ = true;
}

}  // namespace hvd
