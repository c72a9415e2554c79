#include "collective/exact_channel.h"

#include <algorithm>

#include "collective/two_levels.h"

namespace hvd {

// Within a chunk the first host's part is the longest. The last chunk is not longer than the
// others, but what alignment leaves for the last channels may be longer there.
void ExactChannel::prepare() {
  slot_bytes_ = 0;
  if (cut_->chunks != 0) {
    for (const std::uint32_t chunk : {std::uint32_t{0}, cut_->chunks - 1}) {
      const Range longest = part(chunk, 0);
      slot_bytes_ = std::max(slot_bytes_, longest.end - longest.begin);
    }
  }
  for (const Source& source : sources_) {
    auto& slots = slots_[static_cast<std::size_t>(source.host)];
    if (slots.size() < kSlots * slot_bytes_) slots.resize(kSlots * slot_bytes_);
  }
}

// In one step the result overwrites the partial sums, which must have left before.
bool ExactChannel::may_reduce(std::uint32_t /*chunk*/) const {
  return !cut_->one_step || std::ranges::all_of(sources_, [](const Source& source) {
    return source.link->sends().empty();
  });
}

void ExactChannel::send_parts(std::uint32_t chunk) {
  for (Source& other : sources_) {
    views_->for_each_piece(part(chunk, other.host), [&](const Piece& piece) {
      other.link->send(partial_sum(piece), piece.size_bytes);
    });
  }
}

void ExactChannel::send_results(std::uint32_t chunk) {
  views_->for_each_piece(part(chunk, map_.own), [&](const Piece& piece) {
    const std::byte* const result = sums_->address(piece);
    for (Source& other : sources_) other.link->send(result, piece.size_bytes);
  });
}

void ExactChannel::receive_part(Source& source, std::uint32_t chunk) {
  const Range own = part(chunk, map_.own);
  std::byte* const arriving = slot(source, chunk);
  views_->for_each_piece(own, [&](const Piece& piece) {
    source.link->receive(arriving + (piece.stream - own.begin), piece.size_bytes);
  });
}

void ExactChannel::receive_result(Source& source, std::uint32_t chunk) {
  views_->for_each_piece(part(chunk, source.host), [&](const Piece& piece) {
    source.link->receive(sums_->address(piece), piece.size_bytes);
  });
}

void ExactChannel::reduce_part(std::uint32_t chunk) {
  const Range own = part(chunk, map_.own);
  views_->for_each_piece(own, [&](const Piece& piece) {
    addends_[static_cast<std::size_t>(map_.own)] = partial_sum(piece);
    for (const Source& source : sources_) {
      addends_[static_cast<std::size_t>(source.host)] =
          slot(source, chunk) + (piece.stream - own.begin);
    }
    reduce(last_level(piece.view.spec), addends_, sums_->address(piece), nullptr,
           piece.element_count());
  });
}

std::byte* ExactChannel::slot(const Source& source, std::uint32_t chunk) {
  return slots_[static_cast<std::size_t>(source.host)].data() + chunk % kSlots * slot_bytes_;
}

}  // namespace hvd
