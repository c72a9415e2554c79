// Negotiation inside a host: which tensors every rank of a process set has submitted, and in which
// order they run.
//
// The board lies in shared memory. A tensor name owns a slot; a rank that submits the name arrives
// at the slot. The last rank to arrive makes it ready and appends it to the list of ready items.
// Whoever is free first cuts the next bucket off that list, and every rank runs the buckets in that
// order. There are no messages and no rounds: a submission is one short critical section, whoever
// makes it.
//
// A group of tensors is one item: it arrives, fails and runs as a whole. A rank that has joined
// counts as arrived everywhere until all have joined. Ranks here are set ranks, but in texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/request.h"
#include "control/slots.h"
#include "fusion/planner.h"
#include "transport/shared_mutex.h"

namespace hvd {

// A rank's memory of where a name lives; stale when the slot has a new generation.
struct SlotRef {
  static constexpr std::uint32_t kNone = ~0U;
  std::uint32_t slot = kNone;
  std::uint32_t generation = 0;
};

// One tensor, or the first of a group, in a bucket.
struct BucketItem {
  std::uint32_t slot;
  std::uint32_t parity;  // which of the slot's two rounds
};

struct BoardConfig {
  int rank = 0;
  int size = 1;
  std::vector<int> members;  // world rank by set rank; empty: the same
  std::uint32_t cache_capacity = 1024;
  std::size_t fusion_threshold_bytes = 128UL << 20;
  bool fuse_groups = true;                             // with other tensors
  HolderCheck check_holder = [](int, Nanoseconds) {};  // asked while another rank keeps the board
};

class Board {
 public:
  static std::size_t region_bytes(int size);

  // `base` is the start of the board's part of a region that outlives this object.
  Board(std::byte* base, BoardConfig config);

  // Holds the board; the methods below that say so need one. Throws what `check_holder` throws.
  [[nodiscard]] SharedLock lock() const;

  // Under lock: this rank submits one tensor, or a group. `splits`: of an alltoall, rows for each
  // rank. `ref` is looked up or created. True when something became ready.
  bool arrive(const NameKey& key, std::span<const Request> requests,
              std::span<const std::int64_t> splits, std::uint64_t signature, SlotRef& ref);
  // Under lock: cuts the next bucket off the ready items. False when there are none.
  bool form_bucket();
  // Under lock: this rank has run bucket `index`.
  void finish_bucket(std::uint32_t index);

  // Without lock.
  bool has_ready() const;
  std::size_t ready_bytes() const;
  bool has_bucket(std::uint32_t index) const;  // has bucket number `index` been cut?
  void bucket_items(std::uint32_t index, std::vector<BucketItem>& items) const;

  // Valid for an item between its bucket being cut and finish_bucket on this rank.
  std::optional<std::string> error_of(const BucketItem& item) const;
  bool has_absent(const BucketItem& item) const;  // a rank takes part without a tensor
  bool is_absent(const BucketItem& item) const;   // this rank does
  // The items of a group, or the item itself.
  void tensors_of(const BucketItem& item, std::vector<BucketItem>& tensors) const;
  // Of one of those: what was asked for, by the first rank to arrive, and the rows of each rank.
  const Request& request_of(const BucketItem& item) const;
  std::int64_t rows_of(const BucketItem& item, int rank) const;
  // Of an alltoall: rows from every rank to every rank, row by row.
  void splits_of(const BucketItem& item, std::vector<std::int64_t>& splits) const;
  // Of a join: the rank that came last.
  int last_of(const BucketItem& item) const;

  // Ranks that are awaited at a slot where this rank has arrived; under lock.
  std::vector<int> missing_ranks(const SlotRef& ref) const;

 private:
  struct Header;
  struct Bucket;

  void record(std::uint32_t index, std::span<const Request> requests, std::uint64_t signature);
  std::optional<std::string> disagreement(Slot& slot, std::span<const Request> requests) const;
  void record_rows(std::uint32_t index, std::span<const Request> requests,
                   std::span<const std::int64_t> splits);
  void store_requests(std::uint32_t index, std::span<const Request> requests);
  bool is_complete(Slot& slot) const;
  void make_ready(std::uint32_t index);
  void mark_absent(std::uint32_t index, std::uint32_t parity);
  void set_error(Slot& slot, std::uint32_t parity, const std::string& text) const;
  bool join();
  bool end_join(std::uint32_t index);
  bool has_joined(int rank) const { return joined_[rank] != 0; }
  bool has_arrived(Slot& slot, int rank, std::uint32_t round) const;
  std::uint32_t round_of(const BucketItem& item) const;
  std::uint32_t next_in_chain(std::uint32_t index) const;
  FusionItem fusion_item(std::uint32_t item) const;
  int world_rank(int rank) const;

  const BoardConfig config_;
  Header* const header_;
  std::uint32_t* const joined_;  // by rank
  std::uint32_t* const items_;   // ring of ready items: slot, parity in the top bit
  Bucket* const buckets_;        // ring
  SlotTable slots_;
};

}  // namespace hvd
