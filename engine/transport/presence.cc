#include "transport/presence.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace hvd {

std::size_t Presence::region_bytes(int size) {
  return sizeof(PresenceLine) * static_cast<std::size_t>(size);
}

Presence::Presence(std::byte* base, int rank, int size, const std::vector<int>& doorbells)
    : rank_(rank),
      size_(size),
      lines_(reinterpret_cast<PresenceLine*>(base)),
      doorbells_(doorbells.begin(), doorbells.end()) {}

WaitState Presence::wait_state(int rank) const {
  return static_cast<WaitState>(lines_[rank].wait_state.load(std::memory_order_seq_cst));
}

void Presence::set_wait_state(WaitState wait_state) {
  lines_[rank_].wait_state.store(static_cast<std::uint32_t>(wait_state), std::memory_order_seq_cst);
}

bool Presence::ring(int rank) const {
  const WaitState wait_state = this->wait_state(rank);
  if (wait_state == WaitState::kAwake) return false;
  PresenceLine& line = lines_[rank];
  strike(rank,
         wait_state == WaitState::kHelperAsleep ? line.helper_doorbell : line.background_doorbell);
  return true;
}

void Presence::expect() {
  auto background = static_cast<std::uint32_t>(WaitState::kBackground);
  lines_[rank_].wait_state.compare_exchange_strong(
      background, static_cast<std::uint32_t>(WaitState::kExpectant));
}

void Presence::tell(int rank) const {
  if (wait_state(rank) != WaitState::kExpectant) return;  // the cache line stays with its owner
  auto expectant = static_cast<std::uint32_t>(WaitState::kExpectant);
  if (lines_[rank].wait_state.compare_exchange_strong(
          expectant, static_cast<std::uint32_t>(WaitState::kBackground))) {
    strike(rank, lines_[rank].background_doorbell);
  }
}

void Presence::ring_all_doorbells() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (!is_local(rank)) continue;
    strike(rank, lines_[rank].background_doorbell);
    strike(rank, lines_[rank].helper_doorbell);
  }
}

void Presence::end_polling() const {
  lines_[rank_].is_polling.store(0, std::memory_order_relaxed);
  std::uint64_t rings = 0;
  [[maybe_unused]] const auto count = read(doorbell_descriptor(), &rings, sizeof rings);
}

Liveness Presence::liveness(int rank) const {
  return static_cast<Liveness>(lines_[rank].liveness.load(std::memory_order_acquire));
}

bool Presence::set_liveness(int rank, Liveness liveness) {
  auto running = static_cast<std::uint32_t>(Liveness::kRunning);
  return lines_[rank].liveness.compare_exchange_strong(running,
                                                       static_cast<std::uint32_t>(liveness));
}

void Presence::strike(int rank, SharedWord& doorbell) const {
  doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(doorbell);
  if (doorbells_.empty() || lines_[rank].is_polling.load(std::memory_order_seq_cst) == 0) return;
  const std::uint64_t ring = 1;
  [[maybe_unused]] const auto count = write(doorbells_[index(rank)], &ring, sizeof ring);
}

}  // namespace hvd
