#include "collective/cluster_reduce_scatter.h"

#include <algorithm>
#include <cstring>

#include "collective/shares.h"
#include "collective/two_levels.h"

namespace hvd {

namespace {

// The longest piece of a part where no host has a cell to fit it in.
std::size_t longest_piece(std::size_t ranks) {
  return std::clamp<std::size_t>(1024 * 1024 / ranks, 16 * 1024, 256 * 1024);
}

}  // namespace

ClusterReduceScatter::ClusterReduceScatter(Peers& peers, const HostMap& map, Links& links, int rank)
    : ClusterStages(peers, map, links),
      rank_(rank),
      inside_(peers.size()),
      addends_(map.hosts.size()) {
  for (int host = 0; host < map.host_count(); ++host) {
    for (int channel = 0; channel < map.members(host); ++channel) {
      is_target_.push_back(false);
      if (map.owner_index(channel, map.own) != peers.rank()) continue;
      Target& target = targets_.emplace_back();
      target.rank = map.hosts[host][channel];
      target.link = host == map.own ? nullptr : &links.at(host, channel);
    }
  }
  for (const Target& target : targets_) is_target_[target.rank] = true;
  map.for_each_other([&](int host) {
    Source& source = sources_.emplace_back();
    source.host = host;
    source.link = &links.at(host, peers.rank());
  });
}

std::uint32_t ClusterReduceScatter::begin(const std::vector<ViewList>& streams,
                                          BlockNumber first_block) {
  streams_ = &streams;
  std::size_t longest = 0;
  for (const ViewList& stream : streams) longest = std::max(longest, stream.size_bytes());
  const std::size_t ranks = streams.size();
  const std::size_t most = map_.channels() == 1 ? longest_piece(ranks) * ranks : kBlockBytes;
  plan_ = plan_reduce_scatter(longest, static_cast<int>(ranks), most);
  for (Target& target : targets_) {
    if (target.link != nullptr) target.slots.resize(kSlots * plan_.part_bytes);
  }
  for (Source& source : sources_) source.slots.resize(kSlots * plan_.part_bytes);
  awaited_ = added_ = 0;
  start(first_block, plan_.blocks);
  return plan_.blocks;
}

// A block may be summed when the partial sums of the last one in its slots have left.
bool ClusterReduceScatter::make_ready(std::uint32_t block) {
  if (block < kSlots) return true;
  return std::ranges::all_of(targets_, [&](const Target& target) {
    return target.link == nullptr ||
           target.link->sends().moved() >= target.sent_ends[block % kSlots];
  });
}

void ClusterReduceScatter::stage(std::uint32_t block) {
  if (peers_.size() == 1) return;
  std::byte* const cell = staging_cell(peers_.rank(), block);
  for (std::size_t rank = 0; rank < streams_->size(); ++rank) {
    const ViewList& stream = (*streams_)[rank];
    if (is_target_[rank] && !stream.has_zeros()) continue;
    copy_in(stream, range_of(static_cast<int>(rank), block), cell + rank * plan_.part_bytes);
  }
}

void ClusterReduceScatter::use(std::uint32_t block) {
  for (Target& target : targets_) sum_for(target, block);
}

void ClusterReduceScatter::sum_for(Target& target, std::uint32_t block) {
  const Range range = range_of(target.rank, block);
  const std::size_t cell_begin = static_cast<std::size_t>(target.rank) * plan_.part_bytes;
  (*streams_)[target.rank].for_each_piece(
      range, [&](const View& view, std::size_t at, std::size_t offset, std::size_t length) {
        const std::size_t in_block = offset - range.begin;
        if (target.link == nullptr && view.out == nullptr) return;
        const std::byte* sum = view.in == nullptr ? nullptr : view.in + at;
        if (!is_direct(view)) {
          std::byte* const to =
              target.link == nullptr ? view.out + at : slot(target.slots, block) + in_block;
          sum_inside(view, at, cell_begin + in_block, length, block, to);
          sum = to;
        }
        if (target.link != nullptr) target.link->send(sum, length);
      });
  if (target.link != nullptr) target.sent_ends[block % kSlots] = target.link->sends().end();
}

void ClusterReduceScatter::sum_inside(const View& view, std::size_t at, std::size_t in_cell,
                                      std::size_t length, std::uint32_t block, std::byte* to) {
  if (peers_.size() == 1 && view.in == nullptr) {
    std::memset(to, 0, length);
    return;
  }
  for (int member = 0; member < peers_.size(); ++member) {
    const bool is_own = member == peers_.rank() && view.in != nullptr;
    inside_[member] = is_own ? view.in + at : staging_cell(member, block) + in_cell;
  }
  reduce(first_level(view.spec), inside_, to, nullptr, length / size_of(view.spec.dtype));
}

bool ClusterReduceScatter::exchange() {
  bool has_moved = post_receives();
  for (; may_add(); has_moved = true) add_next();
  return post_receives() || has_moved;
}

bool ClusterReduceScatter::post_receives() {
  const std::uint32_t before = awaited_;
  for (; awaited_ < plan_.blocks && awaited_ < added_ + kSlots; ++awaited_) {
    const Range range = range_of(rank_, awaited_);
    for (Source& source : sources_) {
      std::byte* const arriving = slot(source.slots, awaited_);
      (*streams_)[rank_].for_each_piece(
          range, [&](const View&, std::size_t, std::size_t offset, std::size_t length) {
            source.link->receive(arriving + (offset - range.begin), length);
          });
      source.ends[awaited_ % kSlots] = source.link->receives().end();
    }
  }
  return awaited_ != before;
}

bool ClusterReduceScatter::may_add() const {
  return added_ < awaited_ && has_used(added_) &&
         std::ranges::all_of(
             sources_,
             [&](const Source& source) {
               return source.link->receives().moved() >= source.ends[added_ % kSlots];
             });
}

void ClusterReduceScatter::add_next() {
  const Range range = range_of(rank_, added_);
  (*streams_)[rank_].for_each_piece(
      range, [&](const View& view, std::size_t at, std::size_t offset, std::size_t length) {
        if (view.out == nullptr) return;
        addends_[map_.own] = is_direct(view) ? view.in + at : view.out + at;
        for (Source& source : sources_) {
          addends_[source.host] = slot(source.slots, added_) + (offset - range.begin);
        }
        reduce(last_level(view.spec), addends_, view.out + at, nullptr,
               length / size_of(view.spec.dtype));
      });
  ++added_;
}

// Whether the tensor itself is this host's partial sum.
bool ClusterReduceScatter::is_direct(const View& view) const {
  return peers_.size() == 1 && is_partial_sum(view);
}

Range ClusterReduceScatter::range_of(int rank, std::uint32_t block) const {
  return block_of(block, plan_.part_bytes, (*streams_)[rank].size_bytes());
}

std::byte* ClusterReduceScatter::slot(std::vector<std::byte>& slots, std::uint32_t block) const {
  return slots.data() + block % kSlots * plan_.part_bytes;
}

}  // namespace hvd
