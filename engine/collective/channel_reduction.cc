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
    : map_(map), channel_(channel), is_alone_(map.own_members() == 1) {
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
  given_ = part_sends_ = reduced_ = send_turn_ = result_sends_ = 0;
  for (Source& source : sources_) source.turn = source.parts = source.results = source.taken = 0;
  prepare();
}

bool ChannelReduction::exchange() {
  bool has_moved = post_sends();
  for (Source& source : sources_) {
    has_moved |= post_receives(source);
    has_moved |= take_results(source);
  }
  while (may_reduce_next()) {
    reduce_part(reduced_++);
    has_moved = true;
  }
  return has_moved | post_sends();
}

bool ChannelReduction::has_result(std::uint32_t chunk) const {
  if (reduced_ <= chunk) return false;
  if (cut_->one_step) return true;
  return std::ranges::all_of(sources_, [&](const Source& source) { return source.taken > chunk; });
}

// On a link, results follow the parts of their chunk.
bool ChannelReduction::has_left(std::uint32_t chunk) const {
  return result_sends_ > chunk && std::ranges::all_of(sources_, [&](const Source& other) {
           return other.has_sent(other.sent_result_ends[chunk % kPlaces]);
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
    if (!turn.is_second && !may_send_parts(turn.chunk)) break;
    turn.is_second ? post_results(turn.chunk) : post_parts(turn.chunk);
  }
  return send_turn_ != before;
}

void ChannelReduction::post_parts(std::uint32_t chunk) {
  send_parts(chunk);
  for (Source& other : sources_) {
    other.sent_part_ends[chunk % kPlaces] = other.link->sends().end();
  }
  part_sends_ = chunk + 1;
}

void ChannelReduction::post_results(std::uint32_t chunk) {
  send_results(chunk);
  for (Source& other : sources_) {
    other.sent_result_ends[chunk % kPlaces] = other.link->sends().end();
  }
  result_sends_ = chunk + 1;
}

bool ChannelReduction::post_receives(Source& source) {
  const std::uint32_t before = source.turn;
  for (; source.turn < turns(); ++source.turn) {
    const Turn turn = turn_of(source.turn, cut_->chunks, kPartsLead);
    const std::uint32_t chunk = turn.chunk;
    if (turn.is_second) {
      if (!may_receive_result(source, chunk)) break;
      receive_result(source, chunk);
    } else {
      if (chunk >= reduced_ + kSlots) break;
      receive_part(source, chunk);
    }
    (turn.is_second ? source.result_ends : source.part_ends)[chunk % kPlaces] =
        source.link->receives().end();
    (turn.is_second ? source.results : source.parts) = chunk + 1;
  }
  return source.turn != before;
}

bool ChannelReduction::take_results(Source& source) {
  const std::uint32_t before = source.taken;
  while (source.taken < source.results && source.has(source.result_ends[source.taken % kPlaces])) {
    take_result(source, source.taken++);
  }
  return source.taken != before;
}

bool ChannelReduction::may_reduce_next() const {
  if (reduced_ == part_sends_ || !may_reduce(reduced_)) return false;
  return std::ranges::all_of(sources_, [&](const Source& source) {
    return source.parts > reduced_ && source.has(source.part_ends[reduced_ % kPlaces]);
  });
}

const std::byte* ChannelReduction::partial_sum(const Piece& piece) {
  return is_alone_ && is_partial_sum(piece.view) ? piece.in() : sums_->address(piece);
}

}  // namespace hvd
