#include "backend/cluster_routes.h"

#include <algorithm>
#include <bit>

namespace hvd {

namespace {

// Streams that arrive at the same time are passed on in turn, in slices of this length.
constexpr std::size_t kSliceBytes = 128 * 1024;

struct HostMember {
  int host = 0;
  int member = 0;
};

HostMember member_of(const HostMap& map, int rank) {
  for (int host = 0; host < map.host_count(); ++host) {
    const auto& members = map.hosts[host];
    const auto at = std::ranges::find(members, rank);
    if (at != members.end()) return {host, static_cast<int>(at - members.begin())};
  }
  return {};
}

// An alltoall as this rank sees it: one piece from each rank to each rank.
class Splits final : public PairwiseParts {
 public:
  Splits(const Work& work, int rank, std::size_t size)
      : work_(work), row_bytes_(row_bytes_of(*work.request)), rank_(rank), size_(size) {
    for (int other = 0; other < static_cast<int>(size); ++other) {
      in_begins_.push_back(in_end_);
      out_begins_.push_back(out_end_);
      in_end_ += bytes(rank, other);
      out_end_ += bytes(other, rank);
    }
  }

  void for_each_piece(int giver, int taker, const UsePiece& use) const override {
    View view;
    view.size_bytes = bytes(giver, taker);
    if (giver == rank_) view.in = at_offset(work_.in, in_begins_[taker]);
    if (taker == rank_) view.out = at_offset(work_.out, out_begins_[giver]);
    use(view);
  }

 private:
  std::size_t bytes(int giver, int taker) const {
    return static_cast<std::size_t>(work_.splits[giver * size_ + taker]) * row_bytes_;
  }

  const Work& work_;
  const std::size_t row_bytes_;
  const int rank_;
  const std::size_t size_;
  std::vector<std::size_t> in_begins_;
  std::vector<std::size_t> out_begins_;
  std::size_t in_end_ = 0;
  std::size_t out_end_ = 0;
};

}  // namespace

ClusterRoutes::ClusterRoutes(const HostMap& map, Links& links, OwnPlace own,
                             ClusterExchange& exchange)
    : map_(map), links_(links), own_(own), exchange_(exchange) {}

void ClusterRoutes::describe_broadcasts(std::span<const Work> works) {
  spares_.clear();
  for (const Work& work : works) describe(work);
}

// Hosts are numbered from the root's host on. Clearing the lowest set bit of a number gives the
// parent. Setting one of the bits below it gives a child. The largest subtree is served first.
void ClusterRoutes::describe(const Work& work) {
  const HostMember root = member_of(map_, work.root);
  const int hosts = map_.host_count();
  const std::size_t size_bytes = work.request->size_bytes();
  const int owner = map_.owner_index(root.member, map_.own);
  if (owner != own_.member)
    return exchange_.share(owner, {.out = work.out, .size_bytes = size_bytes});
  const auto link = [&](int number) -> Link& {
    return links_.at((root.host + number) % hosts, root.member);
  };
  const auto number = static_cast<unsigned>((map_.own - root.host + hosts) % hosts);
  const std::byte* bytes = work.in;
  Arrival arrival;
  if (number == 0) {
    exchange_.keep(moved_view(work));
  } else {
    std::byte* const to = work.out != nullptr ? work.out : spare(size_bytes);
    arrival = exchange_.receive(link(static_cast<int>(number & (number - 1))), to, size_bytes);
    bytes = to;
  }
  const unsigned beyond =
      number == 0 ? std::bit_ceil(static_cast<unsigned>(hosts)) : number & (~number + 1);
  for (unsigned bit = beyond / 2; bit != 0; bit /= 2) {
    const auto child = static_cast<int>(number | bit);
    if (child < hosts) exchange_.send(link(child), bytes, size_bytes, arrival);
  }
  exchange_.share(owner, {.in = bytes, .size_bytes = size_bytes}, arrival);
}

void ClusterRoutes::describe_allgathers(std::span<const Work> works) {
  spares_.clear();
  for (const Work& work : works) describe_gather(work);
}

void ClusterRoutes::describe_gather(const Work& work) {
  std::vector<std::size_t> begins{0};
  for (const std::int64_t rows : work.rows) {
    begins.push_back(begins.back() + bytes_of_rows(*work.request, rows));
  }
  const auto bytes_of = [&](int rank) { return begins[rank + 1] - begins[rank]; };
  const auto out_of = [&](int rank) { return at_offset(work.out, begins[rank]); };
  const auto taken = [&](int rank) {
    return Source{.view = {.out = out_of(rank), .size_bytes = bytes_of(rank)}, .arrival = {}};
  };
  const std::size_t own_bytes = bytes_of(own_.rank);
  exchange_.keep({.in = work.in, .out = out_of(own_.rank), .size_bytes = own_bytes});
  map_.for_each_other(
      [&](int host) { exchange_.send(links_.at(host, own_.member), work.in, own_bytes); });
  for (int member = 0; member < map_.own_members(); ++member) {
    const bool is_own = member == own_.member;
    std::vector<Source> sources{taken(map_.hosts[map_.own][member])};
    if (is_own) sources.front().view = {.in = work.in, .size_bytes = own_bytes};
    for_each_giver(map_, member, [&](int host, int channel, int giver) {
      if (!is_own) return sources.push_back(taken(giver));
      const std::size_t size_bytes = bytes_of(giver);
      std::byte* const to = work.out != nullptr ? out_of(giver) : spare(size_bytes);
      const Arrival arrival = exchange_.receive(links_.at(host, channel), to, size_bytes);
      sources.push_back({.view = {.in = to, .size_bytes = size_bytes}, .arrival = arrival});
    });
    share_in_turns(member, sources);
  }
}

void ClusterRoutes::share_in_turns(int member, const std::vector<Source>& sources) {
  if (map_.own_members() == 1) return;
  std::size_t longest = 0;
  for (const Source& source : sources) longest = std::max(longest, source.view.size_bytes);
  for (std::size_t begin = 0; begin < longest; begin += kSliceBytes) {
    for (const Source& source : sources) {
      if (source.view.size_bytes <= begin) continue;
      Source slice = source;
      slice.view.in = at_offset(source.view.in, begin);
      slice.view.out = at_offset(source.view.out, begin);
      slice.view.size_bytes = std::min(kSliceBytes, source.view.size_bytes - begin);
      slice.arrival.begin += begin;
      exchange_.share(member, slice.view, slice.arrival);
    }
  }
}

void ClusterRoutes::describe_alltoalls(std::span<const Work> works) {
  std::vector<Splits> splits;
  for (const Work& work : works) splits.emplace_back(work, own_.rank, map_.rank_count());
  std::vector<const PairwiseParts*> bucket;
  for (const Splits& parts : splits) bucket.push_back(&parts);
  describe_alltoall(map_, links_, own_, bucket, exchange_);
}

std::byte* ClusterRoutes::spare(std::size_t size_bytes) {
  spares_.push_back(std::make_unique_for_overwrite<std::byte[]>(size_bytes));
  return spares_.back().get();
}

}  // namespace hvd
