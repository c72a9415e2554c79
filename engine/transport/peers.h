// What the ranks of a host see of each other in shared memory: block counters, staging cells,
// bells.
//
// Data moves in numbered blocks. A rank's counter is b + 1 when for block b
//   staged:   what others need of it is in its staging cell b % kCells,
//   reduced:  it has read the others' staging cells and written its result cell,
//   finished: it has copied the others' result cells.
// A cell is used again kCells blocks later, so before staging block b all ranks must have reduced
// block b - kCells, and before writing the result cell of b all must have finished block b -
// kCells. Counters hold the low 32 bits of block numbers and wrap; comparisons use the signed
// difference, which is at most a few. Cells go by the whole number: 2^32 is no multiple of kCells.
//
// One thread per rank writes its rank's line at a time (the holder of the progress role).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/futex.h"

namespace hvd {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr int kCells = 3;

using BlockNumber = std::uint64_t;

enum class Counter : int { kStaged = 0, kReduced = 1, kFinished = 2 };

// Who would notice that a rank is needed.
enum class Attention : std::uint32_t {
  kBackground = 0,   // nobody: ring the background bell
  kAwake = 1,        // a thread is running collectives: no need to ring
  kHelperAsleep = 2  // a waiting thread sleeps: ring the helper's bell
};

enum class Liveness : std::uint32_t { kRunning = 0, kLeft = 1, kDead = 2 };

// One rank's words. Zero-initialised memory is the valid start state.
struct alignas(kCacheLine) RankLine {
  SharedWord counters[3];
  SharedWord sleepers;  // threads of other ranks asleep on one of the counters
  alignas(kCacheLine) SharedWord background_bell;
  SharedWord helper_bell;
  SharedWord attention;
  SharedWord liveness;
};

struct StagingSizes {
  std::size_t staging_cell_bytes;  // one rank's contribution to one block
  std::size_t result_cell_bytes;   // one rank's share of one block's result
};
StagingSizes staging_sizes(int size);

// A wait for one rank's counter, as data: how and how long to wait is the caller's decision.
struct PeerWait {
  int rank = -1;
  Counter counter = Counter::kStaged;
  std::uint32_t target = 0;
};

class Peers {
 public:
  static std::size_t region_bytes(int size);

  // `base` is the start of the peers' part of a region that outlives this object.
  Peers(std::byte* base, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t staging_cell_bytes() const { return sizes_.staging_cell_bytes; }

  std::byte* staging_cell(int rank, BlockNumber block) const;
  std::byte* result_cell(int rank, BlockNumber block) const;

  // Sets this rank's counter and wakes whoever sleeps on it.
  void publish(Counter counter, BlockNumber value);
  bool reached(const PeerWait& wait) const;
  // True when all other ranks' counters are at `target`; else `blocked` names the first that is
  // not.
  bool all_reached(Counter counter, BlockNumber target, PeerWait& blocked) const;
  // Sleeps until the counter moves, at most `timeout`.
  void sleep(const PeerWait& wait, Nanoseconds timeout);
  // Wakes the threads of this process or others that sleep on `wait`'s word.
  void wake(const PeerWait& wait);

  RankLine& line(int rank) const { return lines_[rank]; }
  RankLine& own() const { return lines_[rank_]; }
  Attention attention(int rank) const;
  void set_attention(Attention attention);
  // Wakes the thread of `rank` that should run collectives. False when one is awake already.
  bool ring(int rank);
  Liveness liveness(int rank) const;
  // Moves on from kRunning only: a rank that left stays left.
  bool set_liveness(int rank, Liveness liveness);

 private:
  SharedWord& word(const PeerWait& wait) const;

  const int rank_;
  const int size_;
  const StagingSizes sizes_;
  RankLine* const lines_;
  std::byte* const cells_;
};

}  // namespace hvd
