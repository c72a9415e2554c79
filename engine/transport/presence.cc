#include "transport/presence.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace hvd {

std::size_t Presence::region_bytes(int size) {
  return sizeof(PresenceLine) * static_cast<std::size_t>(size);
}

Presence::Presence(std::byte* base, int rank, int size, std::vector<int> bells)
    : rank_(rank),
      size_(size),
      lines_(reinterpret_cast<PresenceLine*>(base)),
      bells_(std::move(bells)) {}

Presence::~Presence() {
  for (const int bell : bells_) {
    if (bell >= 0) close(bell);
  }
}

Attention Presence::attention(int rank) const {
  return static_cast<Attention>(lines_[rank].attention.load(std::memory_order_seq_cst));
}

void Presence::set_attention(Attention attention) {
  lines_[rank_].attention.store(static_cast<std::uint32_t>(attention), std::memory_order_seq_cst);
}

bool Presence::ring(int rank) const {
  const Attention attention = this->attention(rank);
  if (attention == Attention::kAwake) return false;
  PresenceLine& line = lines_[rank];
  strike(rank, attention == Attention::kHelperAsleep ? line.helper_bell : line.background_bell);
  return true;
}

void Presence::expect() {
  auto background = static_cast<std::uint32_t>(Attention::kBackground);
  lines_[rank_].attention.compare_exchange_strong(
      background, static_cast<std::uint32_t>(Attention::kExpectant));
}

void Presence::tell(int rank) const {
  if (attention(rank) != Attention::kExpectant) return;  // and leave the line to its owner
  auto expectant = static_cast<std::uint32_t>(Attention::kExpectant);
  if (lines_[rank].attention.compare_exchange_strong(
          expectant, static_cast<std::uint32_t>(Attention::kBackground))) {
    strike(rank, lines_[rank].background_bell);
  }
}

void Presence::ring_all_bells() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (!is_local(rank)) continue;
    strike(rank, lines_[rank].background_bell);
    strike(rank, lines_[rank].helper_bell);
  }
}

void Presence::end_polling() const {
  lines_[rank_].is_polling.store(0, std::memory_order_relaxed);
  std::uint64_t rings = 0;
  [[maybe_unused]] const auto count = read(bell_descriptor(), &rings, sizeof rings);
}

Liveness Presence::liveness(int rank) const {
  return static_cast<Liveness>(lines_[rank].liveness.load(std::memory_order_acquire));
}

bool Presence::set_liveness(int rank, Liveness liveness) {
  auto running = static_cast<std::uint32_t>(Liveness::kRunning);
  return lines_[rank].liveness.compare_exchange_strong(running,
                                                       static_cast<std::uint32_t>(liveness));
}

void Presence::strike(int rank, SharedWord& bell) const {
  bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(bell);
  if (bells_.empty() || lines_[rank].is_polling.load(std::memory_order_seq_cst) == 0) return;
  const std::uint64_t ring = 1;
  [[maybe_unused]] const auto count = write(bells_[index(rank)], &ring, sizeof ring);
}

}  // namespace hvd
