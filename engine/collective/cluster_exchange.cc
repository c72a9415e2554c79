#include "collective/cluster_exchange.h"

#include <algorithm>
#include <array>
#include <limits>

#include "collective/shares.h"

namespace hvd {

namespace {

// So much a rank copies for itself between two looks at the links.
constexpr std::size_t kCopyBytes = 256 * 1024;
// Absent ranks send zeros from memory of this size, and receive dropped bytes into the same size.
constexpr std::size_t kIdleBytes = 64 * 1024;
constexpr std::array<std::byte, kIdleBytes> kZeros{};
constexpr std::uint32_t kNoBlock = std::numeric_limits<std::uint32_t>::max();

}  // namespace

std::size_t Arrival::arrived(std::size_t size_bytes) const {
  if (link == nullptr) return size_bytes;
  const std::uint64_t moved = link->receives().moved();
  return moved <= begin ? 0 : std::min<std::size_t>(moved - begin, size_bytes);
}

ClusterExchange::ClusterExchange(Peers& peers, const HostMap& map, Links& links)
    : ClusterStages(peers, map, links), streams_(peers.size()) {}

void ClusterExchange::clear() {
  for (ViewList& stream : streams_) stream.clear();
  arrivals_.clear();
  kept_.clear();
  for (auto& [link, traffic] : traffic_) {
    traffic.departures.clear();
    traffic.departed = 0;
    traffic.bytes_for_cells = 0;
    traffic.last.clear();
  }
}

void ClusterExchange::send(Link& link, const std::byte* from, std::size_t size_bytes,
                           Arrival arrival) {
  for (; from == nullptr && size_bytes > kIdleBytes; size_bytes -= kIdleBytes) {
    send(link, kZeros.data(), kIdleBytes);
  }
  if (from == nullptr) from = kZeros.data();
  traffic_[&link].departures.push_back(
      {.from = from, .size_bytes = size_bytes, .posted_bytes = 0, .arrival = arrival});
}

Arrival ClusterExchange::receive(Link& link, std::byte* to, std::size_t size_bytes) {
  const std::uint64_t begin = link.receives().end();
  if (to == nullptr) dropped_.resize(kIdleBytes);
  for (; to == nullptr && size_bytes > kIdleBytes; size_bytes -= kIdleBytes) {
    link.receive(dropped_.data(), kIdleBytes);
  }
  link.receive(to == nullptr ? dropped_.data() : to, size_bytes);
  return {.link = &link, .begin = begin, .in_cell = false};
}

void ClusterExchange::receive_last(Link& link, std::byte* to, std::size_t size_bytes) {
  View view;
  view.out = to;
  view.size_bytes = size_bytes;
  traffic_[&link].last.push_back(view);
}

void ClusterExchange::share(int member, const View& view, Arrival arrival) {
  if (peers_.size() == 1) return;
  streams_[member].append(view);
  if (member != peers_.rank()) return;
  arrivals_.push_back(arrival);
  if (arrival.in_cell) traffic_[arrival.link].bytes_for_cells += view.size_bytes;
}

std::uint32_t ClusterExchange::begin(BlockNumber first_block) {
  const std::size_t longest = longest_of(streams_);
  block_bytes_ = pipeline_block_bytes(longest, kBlockBytes);
  kept_bytes_ = 0;
  awaited_block_ = kNoBlock;
  for (auto& [link, traffic] : traffic_) post_last(*link, traffic);
  const std::uint32_t blocks = block_count(longest, block_bytes_);
  start(first_block, blocks);
  return blocks;
}

bool ClusterExchange::make_ready(std::uint32_t block) {
  if (awaited_block_ != block) await(block);
  return std::ranges::all_of(awaited_, [](const auto& awaited) {
    return awaited.first->receives().moved() >= awaited.second;
  });
}

// Finds out what the block waits for, and posts receives for the bytes that arrive in its cell.
void ClusterExchange::await(std::uint32_t block) {
  awaited_block_ = block;
  awaited_.clear();
  const ViewList& stream = streams_[peers_.rank()];
  const Range range = range_of(block, stream);
  std::byte* const cell = staging_cell(peers_.rank(), block);
  stream.for_each_piece(range, [&](const Piece& piece) {
    const Arrival& arrival = arrival_of(piece.view);
    if (arrival.link == nullptr) return;
    std::uint64_t end = arrival.begin + piece.at + piece.size_bytes;
    if (arrival.in_cell) {
      Traffic& traffic = traffic_[arrival.link];
      arrival.link->receive(cell + (piece.stream - range.begin), piece.size_bytes);
      end = arrival.link->receives().end();
      traffic.bytes_for_cells -= piece.size_bytes;
      post_last(*arrival.link, traffic);
    }
    awaited_.emplace_back(arrival.link, end);
  });
}

void ClusterExchange::stage(std::uint32_t block) {
  const ViewList& stream = streams_[peers_.rank()];
  const Range range = range_of(block, stream);
  std::byte* const cell = staging_cell(peers_.rank(), block);
  stream.for_each_piece(range, [&](const Piece& piece) {
    if (!arrival_of(piece.view).in_cell) piece.copy_to(cell + (piece.stream - range.begin));
  });
}

bool ClusterExchange::wants(int rank, std::uint32_t block) const {
  return streams_[rank].has_out(range_of(block, streams_[rank]));
}

// Starts with the next rank, so that the ranks do not all read one cell at a time.
void ClusterExchange::use(std::uint32_t block) {
  for (int step = 1; step < peers_.size(); ++step) {
    const int rank = (peers_.rank() + step) % peers_.size();
    copy_out(streams_[rank], range_of(block, streams_[rank]), staging_cell(rank, block));
  }
}

bool ClusterExchange::exchange() {
  bool has_moved = false;
  for (auto& [link, traffic] : traffic_) has_moved |= post_departures(*link, traffic);
  return copy_kept() || has_moved;
}

bool ClusterExchange::has_posted_all() const {
  return kept_bytes_ == kept_.size_bytes() && std::ranges::all_of(traffic_, [](const auto& entry) {
           const Traffic& traffic = entry.second;
           return traffic.departed == traffic.departures.size() && traffic.bytes_for_cells == 0;
         });
}

bool ClusterExchange::post_departures(Link& link, Traffic& traffic) {
  bool has_posted = false;
  for (; traffic.departed < traffic.departures.size(); ++traffic.departed) {
    Departure& departure = traffic.departures[traffic.departed];
    const std::size_t here = departure.arrival.arrived(departure.size_bytes);
    if (here > departure.posted_bytes) {
      link.send(departure.from + departure.posted_bytes, here - departure.posted_bytes);
      departure.posted_bytes = here;
      has_posted = true;
    }
    if (here < departure.size_bytes) break;
  }
  return has_posted;
}

void ClusterExchange::post_last(Link& link, Traffic& traffic) {
  if (traffic.bytes_for_cells != 0) return;
  for (const View& view : traffic.last) receive(link, view.out, view.size_bytes);
  traffic.last.clear();
}

bool ClusterExchange::copy_kept() {
  if (kept_bytes_ == kept_.size_bytes()) return false;
  const Range range{kept_bytes_, std::min(kept_bytes_ + kCopyBytes, kept_.size_bytes())};
  copy_through(kept_, range);
  kept_bytes_ = range.end;
  return true;
}

Range ClusterExchange::range_of(std::uint32_t block, const ViewList& stream) const {
  return block_of(block, block_bytes_, stream.size_bytes());
}

const Arrival& ClusterExchange::arrival_of(const View& view) const {
  return arrivals_[static_cast<std::size_t>(&view - streams_[peers_.rank()].views().data())];
}

}  // namespace hvd
