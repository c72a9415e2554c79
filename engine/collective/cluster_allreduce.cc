#include "collective/cluster_allreduce.h"

#include <algorithm>
#include <cstring>

#include "collective/cluster_cut.h"
#include "collective/two_levels.h"

namespace hvd {

ClusterAllreduce::ClusterAllreduce(Peers& peers, const HostMap& map, Links& links)
    : ClusterStages(peers, map, links) {
  for (int channel = 0; channel < map.channels(); ++channel) {
    if (!is_own(channel)) continue;
    exact_channels_.emplace_back(map, links, channel);
    low_bit_channels_.emplace_back(map, links, channel);
  }
}

void ClusterAllreduce::choose_channels(bool has_low_bits) {
  own_channels_.clear();
  const auto choose = [&](auto& channels) {
    for (ChannelReduction& channel : channels) own_channels_.push_back(&channel);
  };
  has_low_bits ? choose(low_bit_channels_) : choose(exact_channels_);
}

std::uint32_t ClusterAllreduce::begin(const ViewList& views, BlockNumber first_block,
                                      const AllreduceCut& cut) {
  views_ = &views;
  cut_ = cut_for_cluster(views.size_bytes(), map_.channels(), map_.host_count(),
                         peers_.staging_cell_bytes(), cut, views.has_low_bits());
  sums_.begin(views, cut_);
  choose_channels(views.has_low_bits());
  for (ChannelReduction* channel : own_channels_) channel->begin(views, cut_, sums_);
  for (const View& view : views.views()) {
    if (!is_low_bit(view.format)) clear_errors(view);
  }
  start(first_block, 2 * cut_.chunks);
  return 2 * cut_.chunks;
}

bool ClusterAllreduce::make_ready(std::uint32_t block) {
  const Turn turn = turn_of(block, cut_.chunks, kChunksAhead);
  if (turn.is_second) {
    return std::ranges::all_of(own_channels_, [&](const ChannelReduction* channel) {
      return channel->has_result(turn.chunk);
    });
  }
  if (!sums_.has_spare() || turn.chunk < SumMemory::kChunks) return true;
  return std::ranges::all_of(own_channels_, [&](const ChannelReduction* channel) {
    return channel->has_left(turn.chunk - SumMemory::kChunks);
  });
}

void ClusterAllreduce::stage(std::uint32_t block) {
  if (peers_.size() == 1) return;
  const Turn turn = turn_of(block, cut_.chunks, kChunksAhead);
  turn.is_second ? stage_results(block, turn.chunk) : stage_partial(block, turn.chunk);
}

void ClusterAllreduce::use(std::uint32_t block) {
  const Turn turn = turn_of(block, cut_.chunks, kChunksAhead);
  turn.is_second ? copy_results(block, turn.chunk) : sum_shares(block, turn.chunk);
}

bool ClusterAllreduce::exchange() {
  bool has_moved = false;
  for (ChannelReduction* channel : own_channels_) has_moved |= channel->exchange();
  return has_moved;
}

bool ClusterAllreduce::has_posted_all() const {
  return std::ranges::all_of(
      own_channels_, [](const ChannelReduction* channel) { return channel->has_posted_all(); });
}

// Own shares are read from the tensors. An absent rank has no tensors, so it stages their zeros.
void ClusterAllreduce::stage_partial(std::uint32_t block, std::uint32_t chunk) {
  std::byte* const cell = staging_cell(peers_.rank(), block);
  const std::size_t begin = cut_.chunk(chunk).begin;
  for (int channel = 0; channel < cut_.channels; ++channel) {
    if (is_own(channel) && !views_->has_zeros()) continue;
    const Range share = cut_.share(chunk, channel);
    copy_in(*views_, share, cell + (share.begin - begin));
  }
}

void ClusterAllreduce::sum_shares(std::uint32_t block, std::uint32_t chunk) {
  const std::size_t begin = cut_.chunk(chunk).begin;
  const bool is_alone = peers_.size() == 1;
  for (ChannelReduction* channel : own_channels_) {
    views_->for_each_piece(cut_.share(chunk, channel->channel()), [&](const Piece& piece) {
      if (is_alone && is_partial_sum(piece.view)) return;
      sum_on_host(piece, block, piece.stream - begin, sums_.address(piece));
    });
    channel->give_next();
  }
}

void ClusterAllreduce::stage_results(std::uint32_t block, std::uint32_t chunk) {
  std::byte* const cell = staging_cell(peers_.rank(), block);
  const std::size_t begin = cut_.chunk(chunk).begin;
  for (const ChannelReduction* channel : own_channels_) {
    views_->for_each_piece(cut_.share(chunk, channel->channel()), [&](const Piece& piece) {
      std::memcpy(cell + (piece.stream - begin), sums_.address(piece), piece.size_bytes);
    });
  }
}

void ClusterAllreduce::copy_results(std::uint32_t block, std::uint32_t chunk) {
  const std::size_t begin = cut_.chunk(chunk).begin;
  for (int channel = 0; channel < cut_.channels; ++channel) {
    if (is_own(channel)) continue;
    const Range share = cut_.share(chunk, channel);
    const int owner = map_.owner_index(channel, map_.own);
    copy_out(*views_, share, staging_cell(owner, block) + (share.begin - begin));
    views_->for_each_piece(share, [](const Piece& piece) {
      if (piece.is_low_bit()) clear_errors(piece);  // they are the owner's
    });
  }
}

bool ClusterAllreduce::is_own(int channel) const {
  return map_.owner_index(channel, map_.own) == peers_.rank();
}

}  // namespace hvd
