#include "collective/cluster_reduce_scatter.h"

#include <algorithm>

#include "collective/shares.h"
#include "collective/two_levels.h"

namespace hvd {

namespace {

// The longest piece of a part if every host has one rank: then it need not fit into a cell.
std::size_t longest_piece(std::size_t ranks) {
  return std::clamp<std::size_t>(1024 * 1024 / ranks, 16 * 1024, 256 * 1024);
}

}  // namespace

ClusterReduceScatter::ClusterReduceScatter(Peers& peers, const HostMap& map, Links& links, int rank)
    : ClusterStages(peers, map, links), rank_(rank), addends_(map.hosts.size()) {
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
  const std::size_t ranks = streams.size();
  const std::size_t most = map_.most_members() == 1 ? longest_piece(ranks) * ranks : kBlockBytes;
  plan_ = plan_reduce_scatter(longest_of(streams), static_cast<int>(ranks), most);
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
  (*streams_)[target.rank].for_each_piece(range, [&](const Piece& piece) {
    const std::size_t in_block = piece.stream - range.begin;
    if (target.link == nullptr && piece.view.out == nullptr) return;
    const std::byte* sum = piece.in();
    if (!is_direct(piece.view)) {
      std::byte* const to =
          target.link == nullptr ? piece.out() : slot(target.slots, block) + in_block;
      sum_on_host(piece, block, cell_begin + in_block, to);
      sum = to;
    }
    if (target.link != nullptr) target.link->send(sum, piece.size_bytes);
  });
  if (target.link != nullptr) target.sent_ends[block % kSlots] = target.link->sends().end();
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
      (*streams_)[rank_].for_each_piece(range, [&](const Piece& piece) {
        source.link->receive(arriving + (piece.stream - range.begin), piece.size_bytes);
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
  (*streams_)[rank_].for_each_piece(range, [&](const Piece& piece) {
    if (piece.view.out == nullptr) return;
    addends_[map_.own] = is_direct(piece.view) ? piece.in() : piece.out();
    for (Source& source : sources_) {
      addends_[source.host] = slot(source.slots, added_) + (piece.stream - range.begin);
    }
    reduce(last_level(piece.view.spec), addends_, piece.out(), nullptr, piece.element_count());
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
