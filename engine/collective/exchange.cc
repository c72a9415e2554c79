#include "collective/exchange.h"

#include <algorithm>
#include <cstring>

namespace hvd {

Exchange::Exchange(Peers& peers) : peers_(peers) {}

std::uint32_t Exchange::begin(const std::vector<ViewList>& streams, BlockNumber first_block) {
  streams_ = &streams;
  first_block_ = first_block;
  std::size_t longest = 0;
  for (const ViewList& stream : streams) longest = std::max(longest, stream.size_bytes());
  const std::size_t cell_bytes = peers_.staging_cell_bytes();
  blocks_ =
      peers_.size() == 1 ? 0 : static_cast<std::uint32_t>((longest + cell_bytes - 1) / cell_bytes);
  staged_ = 0;
  copied_ = 0;
  copy_own();
  return blocks_;
}

bool Exchange::advance(PeerWait& blocked) {
  while (copied_ < blocks_) {
    if (staged_ < blocks_ && staged_ <= copied_ + 1) {
      if (may_stage(staged_, blocked)) {
        stage(staged_++);
      } else if (staged_ == copied_) {
        return false;
      }
    }
    if (staged_ == copied_) continue;
    if (!may_copy(copied_, blocked)) return false;
    copy_out(copied_++);
  }
  return true;
}

bool Exchange::may_stage(std::uint32_t block, PeerWait& blocked) const {
  const BlockNumber oldest = first_block_ + block - (kCells - 1);
  return peers_.all_reached(Counter::kReduced, oldest, blocked);
}

bool Exchange::may_copy(std::uint32_t block, PeerWait& blocked) const {
  const auto staged = static_cast<std::uint32_t>(first_block_ + block + 1);
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank == peers_.rank() || !has_block(rank, block)) continue;
    const PeerWait wait{.rank = rank, .counter = Counter::kStaged, .target = staged};
    if (peers_.reached(wait)) continue;
    blocked = wait;
    return false;
  }
  return true;
}

void Exchange::stage(std::uint32_t block) {
  const std::size_t cell_bytes = peers_.staging_cell_bytes();
  const std::size_t begin = block * cell_bytes;
  std::byte* cell = peers_.staging_cell(peers_.rank(), first_block_ + block);
  (*streams_)[peers_.rank()].for_each_piece(
      begin, begin + cell_bytes,
      [&](const View& view, std::size_t at, std::size_t stream, std::size_t length) {
        std::memcpy(cell + (stream - begin), view.in + at, length);
      });
  peers_.publish(Counter::kStaged, first_block_ + block + 1);
}

void Exchange::copy_out(std::uint32_t block) {
  const std::size_t cell_bytes = peers_.staging_cell_bytes();
  const std::size_t begin = block * cell_bytes;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank == peers_.rank()) continue;
    const std::byte* cell = peers_.staging_cell(rank, first_block_ + block);
    (*streams_)[rank].for_each_piece(
        begin, begin + cell_bytes,
        [&](const View& view, std::size_t at, std::size_t stream, std::size_t length) {
          std::memcpy(view.out + at, cell + (stream - begin), length);
        });
  }
  peers_.publish(Counter::kReduced, first_block_ + block + 1);
  peers_.publish(Counter::kFinished, first_block_ + block + 1);
}

void Exchange::copy_own() {
  for (const View& view : (*streams_)[peers_.rank()].views()) {
    if (view.out != nullptr && view.out != view.in && view.size_bytes != 0) {
      std::memcpy(view.out, view.in, view.size_bytes);
    }
  }
}

bool Exchange::has_block(int rank, std::uint32_t block) const {
  return block * peers_.staging_cell_bytes() < (*streams_)[rank].size_bytes();
}

}  // namespace hvd
