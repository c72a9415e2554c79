// How the ranks of a host reach each other's threads: bells to ring, who is awake, who is alive.
//
// One line per rank of the world; process sets share it. Zeroed memory is the valid start state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/futex.h"

namespace hvd {

inline constexpr std::size_t kCacheLine = 64;

// Who would notice that a rank is needed.
enum class Attention : std::uint32_t {
  kBackground = 0,    // nobody: ring the background bell
  kAwake = 1,         // a thread is running collectives: no need to ring
  kHelperAsleep = 2,  // a waiting thread sleeps: ring the helper's bell
  kExpectant = 3      // nobody, but results are expected: ring the background bell for news, too
};

enum class Liveness : std::uint32_t {
  kRunning = 0,
  kLeft = 1,    // of its own accord
  kDead = 2,    // its process has ended
  kFailed = 3,  // its world is over: it lost a rank that this one may not need
};

struct alignas(kCacheLine) PresenceLine {
  SharedWord background_bell;
  SharedWord helper_bell;
  SharedWord attention;
  SharedWord liveness;
};

class Presence {
 public:
  static std::size_t region_bytes(int size);

  // `base` is the start of the presence's part of a region that outlives this object.
  Presence(std::byte* base, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }

  SharedWord& background_bell() const { return lines_[rank_].background_bell; }
  SharedWord& helper_bell() const { return lines_[rank_].helper_bell; }

  Attention attention(int rank) const;
  void set_attention(Attention attention);
  // Wakes the thread of `rank` that should run collectives. False when one is awake already.
  bool ring(int rank) const;
  // Nobody is awake here, but who makes something ready shall say so.
  void expect();
  // Something became ready: wakes `rank` if it expects that, once.
  void tell(int rank) const;
  // Wakes every sleeping thread of all ranks.
  void ring_all_bells() const;

  Liveness liveness(int rank) const;
  // Moves on from kRunning only: a rank that left stays left.
  bool set_liveness(int rank, Liveness liveness);

 private:
  const int rank_;
  const int size_;
  PresenceLine* const lines_;
};

// One more ring of a bell, and whoever sleeps on it wakes.
void strike(SharedWord& bell);

}  // namespace hvd
