// How the ranks of a host reach each other's threads: doorbells, and which ranks are awake or
// alive.
//
// One line per rank of the world; process sets share it. Zeroed memory is the valid start state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/descriptor.h"
#include "core/futex.h"

namespace hvd {

inline constexpr std::size_t kCacheLine = 64;

// Which thread of a rank notices that the rank is needed.
enum class WaitState : std::uint32_t {
  kBackground = 0,    // none: ring the background doorbell
  kAwake = 1,         // a thread is running collectives: no need to ring
  kHelperAsleep = 2,  // a waiting thread sleeps: ring the helper doorbell
  kExpectant = 3      // none, but results are expected: ring the background doorbell for news, too
};

enum class Liveness : std::uint32_t {
  kRunning = 0,
  kLeft = 1,    // it shut down
  kDead = 2,    // its process has ended, or its engine did not start
  kFailed = 3,  // its world is over: it lost a rank, which other ranks may not need
};

struct alignas(kCacheLine) PresenceLine {
  SharedWord background_doorbell;
  SharedWord helper_doorbell;
  SharedWord wait_state;
  SharedWord liveness;
  SharedWord beats;       // moves now and then while a thread waits for others
  SharedWord is_polling;  // a thread sleeps in poll(2): write to its eventfd, too
};

class Presence {
 public:
  static std::size_t region_bytes(int size);

  // `base` is the start of the presence's part of a region that outlives this object. `doorbells`:
  // where the world spans hosts, an eventfd for each rank of this host, and -1 for other ranks.
  // They belong to this object.
  Presence(std::byte* base, int rank, int size, const std::vector<int>& doorbells = {});

  int rank() const { return rank_; }
  int size() const { return size_; }

  SharedWord& background_doorbell() const { return lines_[rank_].background_doorbell; }
  SharedWord& helper_doorbell() const { return lines_[rank_].helper_doorbell; }

  WaitState wait_state(int rank) const;
  void set_wait_state(WaitState wait_state);
  // Wakes the thread of `rank` that should run collectives. False when one is awake already.
  bool ring(int rank) const;
  // No thread is awake here, but ranks that make something ready must tell this one.
  void expect();
  // Something became ready: wakes `rank` once, if it expects that.
  void tell(int rank) const;
  // Wakes every sleeping thread of all ranks of this host.
  void ring_all_doorbells() const;
  // Rings one of this rank's own doorbells.
  void ring_own(SharedWord& doorbell) const { strike(rank_, doorbell); }

  // Is `rank` of this host?
  bool is_local(int rank) const { return doorbells_.empty() || doorbells_[index(rank)] >= 0; }
  // For a thread that sleeps in poll(2): between these two calls every ring of this rank's
  // doorbells makes doorbell_descriptor() readable.
  void begin_polling() const { lines_[rank_].is_polling.store(1, std::memory_order_seq_cst); }
  void end_polling() const;
  // Tells ranks that wait for this one that it waits itself.
  void beat() const { lines_[rank_].beats.fetch_add(1, std::memory_order_relaxed); }
  std::uint32_t beats(int rank) const { return lines_[rank].beats.load(std::memory_order_relaxed); }
  int doorbell_descriptor() const { return doorbells_[index(rank_)]; }

  Liveness liveness(int rank) const;
  // Changes kRunning only: a rank that left stays so. True when changed.
  bool set_liveness(int rank, Liveness liveness);

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void strike(int rank, SharedWord& doorbell) const;

  const int rank_;
  const int size_;
  PresenceLine* const lines_;
  const std::vector<Descriptor> doorbells_;
};

}  // namespace hvd
