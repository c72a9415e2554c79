#include "collective/low_bit_channel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "collective/two_levels.h"

namespace hvd {

namespace {

// `party`: the number of the coding host, so that each has chances of its own. The factor leads
// from coded sums back to the tensor.
Coding coding_of(const Piece& piece, int party) {
  const auto factor = static_cast<float>(1.0 / piece.view.spec.prescale);
  return {.errors = piece.errors(),
          .factor = std::isfinite(factor) ? factor : 0.0F,
          .rounding = piece.view.rounding.of(static_cast<std::uint64_t>(party)),
          .first = piece.at / size_of(piece.view.spec.dtype)};
}

float factor_after(const ReduceSpec& spec) {
  const int divisor = spec.op == ReduceOp::kAverage ? spec.divisor : 1;
  return static_cast<float>(spec.postscale / divisor);
}

}  // namespace

void LowBitChannel::CodedPlace::prepare(std::size_t bytes_of_chunk) {
  chunk_bytes = bytes_of_chunk;
  if (bytes.size() < kCodedChunks * chunk_bytes) bytes.resize(kCodedChunks * chunk_bytes);
}

// How densely a chunk is coded depends on its views.
void LowBitChannel::prepare() {
  std::size_t most_bytes = 0;
  for (std::uint32_t chunk = 0; chunk < cut_->chunks; ++chunk) {
    for (int host = 0; host < map_.host_count(); ++host) {
      most_bytes = std::max(most_bytes, link_bytes(chunk, host));
    }
  }
  for (Places& of_host : places_) {
    of_host.sent_part.prepare(most_bytes);
    of_host.result.prepare(most_bytes);
  }
  for (const Source& source : sources_) places(source.host).received_part.prepare(most_bytes);
}

std::size_t LowBitChannel::link_bytes(std::uint32_t chunk, int host) const {
  std::size_t bytes = 0;
  views_->for_each_piece(part(chunk, host),
                         [&](const Piece& piece) { bytes += piece.link_bytes(); });
  return bytes;
}

bool LowBitChannel::may_send_parts(std::uint32_t chunk) const {
  return chunk < kCodedChunks ||
         std::ranges::all_of(
             sources_,
             [&](const Source& other) {
               return other.has_sent(other.sent_part_ends[(chunk - kCodedChunks) % kPlaces]);
             });
}

bool LowBitChannel::may_receive_result(const Source& source, std::uint32_t chunk) const {
  return chunk < source.taken + kCodedChunks;
}

bool LowBitChannel::may_reduce(std::uint32_t chunk) const {
  return chunk < kCodedChunks || has_left(chunk - kCodedChunks);
}

void LowBitChannel::send_parts(std::uint32_t chunk) {
  code_part(chunk, map_.own);
  for (Source& other : sources_) {
    code_part(chunk, other.host);
    other.link->send(places(other.host).sent_part.at(chunk), link_bytes(chunk, other.host));
  }
}

void LowBitChannel::code_part(std::uint32_t chunk, int host) {
  std::byte* to = places(host).sent_part.at(chunk);
  views_->for_each_piece(part(chunk, host), [&](const Piece& piece) {
    if (piece.is_low_bit()) {
      encode(piece.view.format, piece.view.spec.dtype, partial_sum(piece), piece.element_count(),
             to, coding_of(piece, map_.own));
    } else {
      std::memcpy(to, partial_sum(piece), piece.size_bytes);
    }
    to += piece.link_bytes();
  });
}

void LowBitChannel::send_results(std::uint32_t chunk) {
  const std::byte* const result = places(map_.own).result.at(chunk);
  const std::size_t bytes = link_bytes(chunk, map_.own);
  for (Source& other : sources_) other.link->send(result, bytes);
}

void LowBitChannel::receive_part(Source& source, std::uint32_t chunk) {
  source.link->receive(places(source.host).received_part.at(chunk), link_bytes(chunk, map_.own));
}

void LowBitChannel::receive_result(Source& source, std::uint32_t chunk) {
  source.link->receive(places(source.host).result.at(chunk), link_bytes(chunk, source.host));
}

void LowBitChannel::reduce_part(std::uint32_t chunk) {
  std::size_t at = 0;
  views_->for_each_piece(part(chunk, map_.own), [&](const Piece& piece) {
    add_up(piece, chunk, at);
    at += piece.link_bytes();
  });
  write_result(map_.own, chunk);
}

// `at`: of the piece in the coded part.
void LowBitChannel::add_up(const Piece& piece, std::uint32_t chunk, std::size_t at) {
  addends_[static_cast<std::size_t>(map_.own)] = places(map_.own).sent_part.at(chunk) + at;
  for (const Source& source : sources_) {
    addends_[static_cast<std::size_t>(source.host)] =
        places(source.host).received_part.at(chunk) + at;
  }
  std::byte* const to = places(map_.own).result.at(chunk) + at;
  if (piece.is_low_bit()) {
    add_coded(piece.view.format, addends_, piece.element_count(), to,
              coding_of(piece, map_.host_count()));
  } else {
    reduce(last_level(piece.view.spec), addends_, to, nullptr, piece.element_count());
  }
}

void LowBitChannel::write_result(int host, std::uint32_t chunk) {
  const std::byte* from = places(host).result.at(chunk);
  views_->for_each_piece(part(chunk, host), [&](const Piece& piece) {
    if (piece.is_low_bit()) {
      decode(piece.view.format, piece.view.spec.dtype, from, piece.element_count(),
             sums_->address(piece), factor_after(piece.view.spec));
    } else {
      std::memcpy(sums_->address(piece), from, piece.size_bytes);
    }
    from += piece.link_bytes();
  });
}

}  // namespace hvd
