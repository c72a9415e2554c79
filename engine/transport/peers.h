// What the ranks of a process set see of each other's data in shared memory: block counters and
// staging cells. Ranks here are set ranks.
//
// Data moves in numbered blocks. A rank's counter is b + 1 when for block b
//   staged:   the data that others need from it is in its staging cell b % kCells,
//   reduced:  it has read the others' staging cells and written its result cell,
//   finished: it has copied the others' result cells. A cell is used again kCells blocks later, so
// before staging block b all ranks must have reduced block b - kCells, and before writing the
// result cell of b all must have finished block b - kCells. Counters hold the low 32 bits of block
// numbers and wrap; comparisons use the signed difference, which is at most a few. The full block
// number selects the cell: 2^32 is no multiple of kCells.
//
// One thread per rank at a time writes the rank's line (the holder of the progress role).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/futex.h"
#include "transport/presence.h"

namespace hvd {

inline constexpr int kCells = 3;
// Bytes of a stream in a block, at most, unless configured.
inline constexpr std::size_t kBlockBytes = 512 * 1024;

using BlockNumber = std::uint64_t;

enum class Counter : int { kStaged = 0, kReduced = 1, kFinished = 2 };

// One rank's words. Zero-initialised memory is the valid start state.
struct alignas(kCacheLine) RankLine {
  SharedWord counters[3];
  SharedWord sleepers;   // threads of other ranks asleep on one of the counters
  SharedWord listeners;  // ranks whose doorbells ring when a counter moves
};

struct StagingSizes {
  std::size_t staging_cell_bytes;  // one rank's contribution to one block
  std::size_t result_cell_bytes;   // one rank's share of one block's result
};
StagingSizes staging_sizes(int size);

// A wait for another rank, as data: how and how long to wait is the caller's decision.
struct PeerWait {
  int rank = -1;  // of this host, whose counter is awaited; -1: none
  Counter counter = Counter::kStaged;
  std::uint32_t target = 0;
  int remote = -1;  // set rank on another host whose bytes are awaited, instead or too; -1: none
  bool is_polled = false;    // no wake-up comes: look again after Backend::pause()
  bool is_for_turn = false;  // polled, for its number or a bucket of another set launched first

  bool operator==(const PeerWait&) const = default;
};

class Peers {
 public:
  static std::size_t region_bytes(int size);

  // `base` is the start of the peers' part of a region that outlives this object.
  Peers(std::byte* base, int rank, int size);
  // Needed to ring listeners. `members[r]`: the world rank of set rank r.
  void connect(const Presence& presence, std::vector<int> members);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t staging_cell_bytes() const { return sizes_.staging_cell_bytes; }

  std::byte* staging_cell(int rank, BlockNumber block) const;
  std::byte* result_cell(int rank, BlockNumber block) const;

  // Sets this rank's counter and wakes the threads that sleep on it.
  void publish(Counter counter, BlockNumber value);
  bool reached(const PeerWait& wait) const;
  // True when all other ranks' counters are at `target`; else `blocked` names the first that is
  // not.
  bool all_reached(Counter counter, BlockNumber target, PeerWait& blocked) const;
  // Sleeps until the counter moves, at most `timeout`.
  void sleep(const PeerWait& wait, Nanoseconds timeout);
  // Wakes the threads of this process or others that sleep on `wait`'s word.
  void wake(const PeerWait& wait);
  // Wakes the threads of other ranks that sleep on this one.
  void wake_sleepers();
  // For a thread that waits for several counters and sleeps on its own doorbell. Between these two
  // calls its doorbell is rung when any counter of wait.rank moves.
  void listen(const PeerWait& wait) { lines_[wait.rank].listeners.fetch_add(1); }
  void unlisten(const PeerWait& wait) { lines_[wait.rank].listeners.fetch_sub(1); }
  RankLine& own() const { return lines_[rank_]; }

 private:
  SharedWord& word(const PeerWait& wait) const;
  void ring_listeners() const;

  const int rank_;
  const int size_;
  const StagingSizes sizes_;
  RankLine* const lines_;
  std::byte* const cells_;
  const Presence* presence_ = nullptr;
  std::vector<int> members_;
};

}  // namespace hvd
