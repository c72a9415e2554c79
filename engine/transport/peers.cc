#include "transport/peers.h"

#include <algorithm>
#include <utility>

namespace hvd {

namespace {

constexpr std::size_t kPage = 4096;
// With many hosts an allreduce uses more of a cell than kBlockBytes, so that what it sends to each
// is worth a message. The unused part takes no memory.
constexpr std::size_t kStagingCellBytes = 8 * 1024 * 1024;
static_assert(kStagingCellBytes >= kBlockBytes);

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t lines_bytes(int size) { return round_up(sizeof(RankLine) * size, kPage); }

std::size_t cells_bytes(const StagingSizes& sizes) {
  return kCells * (sizes.staging_cell_bytes + sizes.result_cell_bytes);
}

bool at_least(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

}  // namespace

StagingSizes staging_sizes(int size) {
  const std::size_t share = kStagingCellBytes / static_cast<std::size_t>(std::max(size, 1));
  return {.staging_cell_bytes = kStagingCellBytes,
          .result_cell_bytes = round_up(share + kCacheLine, kPage)};
}

std::size_t Peers::region_bytes(int size) {
  return lines_bytes(size) + static_cast<std::size_t>(size) * cells_bytes(staging_sizes(size));
}

Peers::Peers(std::byte* base, int rank, int size)
    : rank_(rank),
      size_(size),
      sizes_(staging_sizes(size)),
      lines_(reinterpret_cast<RankLine*>(base)),
      cells_(base + lines_bytes(size)) {}

void Peers::connect(const Presence& presence, std::vector<int> members) {
  presence_ = &presence;
  members_ = std::move(members);
}

std::byte* Peers::staging_cell(int rank, BlockNumber block) const {
  return cells_ + static_cast<std::size_t>(rank) * cells_bytes(sizes_) +
         (block % kCells) * sizes_.staging_cell_bytes;
}

std::byte* Peers::result_cell(int rank, BlockNumber block) const {
  return cells_ + static_cast<std::size_t>(rank) * cells_bytes(sizes_) +
         kCells * sizes_.staging_cell_bytes + (block % kCells) * sizes_.result_cell_bytes;
}

void Peers::publish(Counter counter, BlockNumber value) {
  SharedWord& word = own().counters[static_cast<int>(counter)];
  // Sequentially consistent with sleep(): either the sleeper sees the value or we see the sleeper.
  word.store(static_cast<std::uint32_t>(value), std::memory_order_seq_cst);
  if (own().sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(word);
  if (own().listeners.load(std::memory_order_seq_cst) != 0) ring_listeners();
}

// Which ranks listen is not recorded, so all sleeping ranks are rung.
void Peers::ring_listeners() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && presence_ != nullptr) presence_->ring(members_[rank]);
  }
}

bool Peers::reached(const PeerWait& wait) const {
  // Sequentially consistent with publish(): a listener's last look before it sleeps.
  return at_least(word(wait).load(std::memory_order_seq_cst), wait.target);
}

bool Peers::all_reached(Counter counter, BlockNumber target, PeerWait& blocked) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const PeerWait wait{
        .rank = rank, .counter = counter, .target = static_cast<std::uint32_t>(target)};
    if (reached(wait)) continue;
    blocked = wait;
    return false;
  }
  return true;
}

void Peers::sleep(const PeerWait& wait, Nanoseconds timeout) {
  SharedWord& sleepers = lines_[wait.rank].sleepers;
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = word(wait).load(std::memory_order_seq_cst);
  if (!at_least(seen, wait.target)) futex_wait(word(wait), seen, timeout);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void Peers::wake(const PeerWait& wait) { futex_wake_all(word(wait)); }

void Peers::wake_sleepers() {
  for (SharedWord& counter : own().counters) futex_wake_all(counter);
}

SharedWord& Peers::word(const PeerWait& wait) const {
  return lines_[wait.rank].counters[static_cast<int>(wait.counter)];
}

}  // namespace hvd
