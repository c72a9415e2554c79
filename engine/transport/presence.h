// How the ranks of a host reach each other's threads: bells to ring, who is awake, who is alive.
//
// One line per rank of the world; process sets share it. Zeroed memory is the valid start state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/futex.h"

namespace hvd {

inline constexpr std::size_t kCacheLine = 64;

// Who would notice that a rank is needed.
enum class WaitState : std::uint32_t {
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
  SharedWord background_doorbell;
  SharedWord helper_doorbell;
  SharedWord wait_state;
  SharedWord liveness;
  SharedWord beats;       // moves now and then while a thread waits for others
  SharedWord is_polling;  // a thread sleeps on descriptors: the bell's descriptor must ring, too
};

class Presence {
 public:
  static std::size_t region_bytes(int size);

  // `base` is the start of the presence's part of a region that outlives this object. Where the
  // world spans hosts, `bells` are eventfds of this host's ranks, by rank (-1: of another host),
  // which belong to this object.
  Presence(std::byte* base, int rank, int size, std::vector<int> doorbells = {});
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  SharedWord& background_doorbell() const { return lines_[rank_].background_doorbell; }
  SharedWord& helper_doorbell() const { return lines_[rank_].helper_doorbell; }

  WaitState wait_state(int rank) const;
  void set_wait_state(WaitState wait_state);
  // Wakes the thread of `rank` that should run collectives. False when one is awake already.
  bool ring(int rank) const;
  // Nobody is awake here, but who makes something ready shall say so.
  void expect();
  // Something became ready: wakes `rank` if it expects that, once.
  void tell(int rank) const;
  // Wakes every sleeping thread of all ranks of this host.
  void ring_all_doorbells() const;
  // One more ring of one of this rank's bells.
  void ring_own(SharedWord& doorbell) const { strike(rank_, doorbell); }

  // Is `rank` of this host?
  bool is_local(int rank) const { return doorbells_.empty() || doorbells_[index(rank)] >= 0; }
  // For a thread that sleeps in poll(2): between these two calls every ring of this rank's bells
  // makes bell_descriptor() readable.
  void begin_polling() const { lines_[rank_].is_polling.store(1, std::memory_order_seq_cst); }
  void end_polling() const;
  // For ranks that wait: "not I, I wait myself".
  void beat() const { lines_[rank_].beats.fetch_add(1, std::memory_order_relaxed); }
  std::uint32_t beats(int rank) const { return lines_[rank].beats.load(std::memory_order_relaxed); }
  int doorbell_descriptor() const { return doorbells_[index(rank_)]; }

  Liveness liveness(int rank) const;
  // Moves on from kRunning only: a rank that left stays left.
  bool set_liveness(int rank, Liveness liveness);

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void strike(int rank, SharedWord& doorbell) const;

  const int rank_;
  const int size_;
  PresenceLine* const lines_;
  const std::vector<int> doorbells_;
};

}  // namespace hvd
