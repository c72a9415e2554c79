#include "collective/channel_reduction.h"

#include <algorithm>

#include "collective/cluster_cut.h"
#include "collective/two_levels.h"

namespace hvd {

namespace {

constexpr std::uint32_t kPartsLead = kPartsAhead + 1;

}  // namespace

void SumMemory::begin(const ViewList& views, const ClusterCut& cut) {
  has_spare_ = std::ranges::any_of(
      views.views(), [](const View& view) { return view.out == nullptr && view.size_bytes != 0; });
  if (!has_spare_) return;
  // A multiple of the chunk, so that no piece of a chunk reaches over the end.
  spare_.resize(cut.chunk_bytes * std::min(cut.chunks, kChunks));
}

ChannelReduction::ChannelReduction(const HostMap& map, Links& links, int channel)
    : map_(map), channel_(channel), is_alone_(map.own_members() == 1), addends_(map.hosts.size()) {
  map.for_each_other([&](int host) {
    Source& source = sources_.emplace_back();
    source.host = host;
    source.link = &links.at(host, channel);
  });
}

void ChannelReduction::begin(const ViewList& views, const ClusterCut& cut, SumMemory& sums) {
  views_ = &views;
  cut_ = &cut;
  sums_ = &sums;
  given_ = reduced_ = send_turn_ = result_sends_ = 0;
  slot_bytes_ = 0;
  if (cut.chunks != 0) {
    const Range longest = cut.part(0, 0, 0);
    slot_bytes_ = longest.end - longest.begin;
  }
  for (Source& source : sources_) {
    source.turn = source.parts = source.results = 0;
    if (source.slots.size() < kSlots * slot_bytes_) source.slots.resize(kSlots * slot_bytes_);
  }
}

bool ChannelReduction::exchange() {
  bool has_moved = post_sends();
  for (Source& source : sources_) has_moved |= post_receives(source);
  while (may_reduce()) {
    reduce_next();
    has_moved = true;
  }
  return has_moved | post_sends();
}

bool ChannelReduction::has_result(std::uint32_t chunk) const {
  if (reduced_ <= chunk) return false;
  if (cut_->one_step) return true;
  return std::ranges::all_of(sources_, [&](const Source& source) {
    return source.results > chunk && source.has(source.result_ends[chunk % kPlaces]);
  });
}

// On a link, results follow the parts of their chunk.
bool ChannelReduction::has_left(std::uint32_t chunk) const {
  return result_sends_ > chunk && std::ranges::all_of(sources_, [&](const Source& other) {
           return other.link->sends().moved() >= other.sent_ends[chunk % kPlaces];
         });
}

bool ChannelReduction::has_posted_all() const {
  return reduced_ == cut_->chunks && send_turn_ == turns() &&
         std::ranges::all_of(sources_, [&](const Source& s) { return s.turn == turns(); });
}

bool ChannelReduction::post_sends() {
  const std::uint32_t before = send_turn_;
  for (; send_turn_ < turns(); ++send_turn_) {
    const Turn turn = turn_of(send_turn_, cut_->chunks, kPartsLead);
    if (turn.chunk >= (turn.is_second ? reduced_ : given_)) break;
    turn.is_second ? post_results(turn.chunk) : post_parts(turn.chunk);
  }
  return send_turn_ != before;
}

void ChannelReduction::post_parts(std::uint32_t chunk) {
  for (Source& other : sources_) {
    views_->for_each_piece(cut_->part(chunk, channel_, other.host), [&](const Piece& piece) {
      other.link->send(partial_sum(piece), piece.size_bytes);
    });
  }
}

void ChannelReduction::post_results(std::uint32_t chunk) {
  views_->for_each_piece(cut_->part(chunk, channel_, map_.own), [&](const Piece& piece) {
    const std::byte* const result = sums_->address(piece);
    for (Source& other : sources_) other.link->send(result, piece.size_bytes);
  });
  for (Source& other : sources_) other.sent_ends[chunk % kPlaces] = other.link->sends().end();
  result_sends_ = chunk + 1;
}

bool ChannelReduction::post_receives(Source& source) {
  const std::uint32_t before = source.turn;
  for (; source.turn < turns(); ++source.turn) {
    const Turn turn = turn_of(source.turn, cut_->chunks, kPartsLead);
    if (!turn.is_second && turn.chunk >= reduced_ + kSlots) break;
    const Range part = cut_->part(turn.chunk, channel_, turn.is_second ? source.host : map_.own);
    std::byte* const arriving = slot(source, turn.chunk);
    views_->for_each_piece(part, [&](const Piece& piece) {
      std::byte* const to =
          turn.is_second ? sums_->address(piece) : arriving + (piece.stream - part.begin);
      source.link->receive(to, piece.size_bytes);
    });
    auto& ends = turn.is_second ? source.result_ends : source.part_ends;
    ends[turn.chunk % kPlaces] = source.link->receives().end();
    (turn.is_second ? source.results : source.parts) = turn.chunk + 1;
  }
  return source.turn != before;
}

// In one step the result overwrites the partial sums, which must have left before.
bool ChannelReduction::may_reduce() const {
  if (reduced_ == given_) return false;
  return std::ranges::all_of(sources_, [&](const Source& source) {
    if (cut_->one_step && !source.link->sends().empty()) return false;
    return source.parts > reduced_ && source.has(source.part_ends[reduced_ % kPlaces]);
  });
}

void ChannelReduction::reduce_next() {
  const Range part = cut_->part(reduced_, channel_, map_.own);
  views_->for_each_piece(part, [&](const Piece& piece) {
    addends_[map_.own] = partial_sum(piece);
    for (Source& source : sources_) {
      addends_[source.host] = slot(source, reduced_) + (piece.stream - part.begin);
    }
    reduce(last_level(piece.view.spec), addends_, sums_->address(piece), nullptr,
           piece.element_count());
  });
  ++reduced_;
}

std::byte* ChannelReduction::slot(Source& source, std::uint32_t chunk) const {
  return source.slots.data() + chunk % kSlots * slot_bytes_;
}

const std::byte* ChannelReduction::partial_sum(const Piece& piece) {
  return is_alone_ && is_partial_sum(piece.view) ? piece.in() : sums_->address(piece);
}

}  // namespace hvd
